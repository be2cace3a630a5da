// One attention call under the microscope: error against exact attention, density, recall and times.
#pragma once

#include <optional>
#include <string>

#include "winnow/callbacks.h"
#include "winnow/engine.h"
#include "winnow/metrics.h"
#include "winnow/select.h"
#include "winnow/session.h"
#include "winnow/tensor.h"

namespace winnow::report {

struct CallErrors {
  double rel_l1 = 0.0, rel_l2 = 0.0, cosine = 0.0;
};

// Exact attention for some query rows of a call: what errors are measured against.
struct ExactRows {
  Tensor out;  // [B,n,H,D] f32: rows 0, step, 2 step, ...
  std::int64_t step = 1;
  std::string executor;  // that computed them
};
// `count` rows, evenly spaced, in f64.
ExactRows exact_rows(const AttentionInputs& call, int count);
// Every row, in f32 products and sums of the inputs as they are, by the fastest executor that computes so.
ExactRows f32_rows(const AttentionInputs& call);

struct CallOptions {
  int repeat = 20;            // timed calls of the method and of dense each, interleaved; the median counts. 0: no timing
  double max_seconds = 20.0;  // stops repeating after this long, but not before three calls
  bool recall = true;         // costs one dense pass in f32
  std::optional<int> gpu;     // runs on this one, of those that winnow::gpus() lists, and not on the CPU
  Progress progress;          // stages "recall", "timing"
};

struct CallMeasurement {
  std::string executor;
  double density = 1.0;
  SelectReport selected;    // of a method that selects tiles
  CallErrors errors;        // of the method against exact attention
  CallErrors dense_errors;  // of dense attention on the same executor: what no method can be expected to beat
  std::int64_t rows = 0;    // compared, per batch and head
  // True softmax mass of what was computed, mean over queries. Of skip_softmax, from the row sums of its own kernel.
  std::optional<double> mass_recall;
  std::optional<double> set_recall;  // unset for methods that keep no plan of their own: dense, skip_softmax
  int repeat = 0;                    // timed calls
  double plan_seconds = 0.0;         // medians; plans are made by the CPU, and copied to a GPU within this time
  double kernel_seconds = 0.0;
  double dense_seconds = 0.0;  // dense call, its (trivial) plan included
  // Of the candidate tiles, those that CosineGate forced dense.
  double gated_share() const {
    return selected.candidates > 0 ? static_cast<double>(selected.gated) / static_cast<double>(selected.candidates) : 0.0;
  }
  double total_seconds() const { return plan_seconds + kernel_seconds; }
  double plan_share() const { return dense_seconds > 0.0 ? plan_seconds / dense_seconds : 0.0; }  // of the dense time
  double kernel_speedup() const { return kernel_seconds > 0.0 ? dense_seconds / kernel_seconds : 0.0; }
  double speedup() const { return total_seconds() > 0.0 ? dense_seconds / total_seconds() : 0.0; }
};

// Throws Error if the setting needs more than one call: a budget follows 1/l of the calls before.
void check_single_call(const AttentionConfig& config);

// q [B,Sq,H,D]  k, v [B,Sk,Hk,D]; of the context only the grid is used; the setting's gates and cost profile are ignored. A method that
// looks at positions needs the grid.
// `exact` belongs to the same call. Throws Error, also where check_single_call() does; Cancelled.
CallMeasurement measure_call(const AttentionInputs& call, const ExactRows& exact, const AttentionConfig& config,
                             const CallOptions& options);

// Throws Error, naming what is missing, if this build or machine cannot run attention on that GPU.
void check_gpu(int gpu);

// The share of the call that the setting computes. Throws Error as measure_call().
double density_of(const AttentionInputs& call, const AttentionConfig& config, Workspace& ws);

// Whether the setting makes a plan of its own: dense and skip_softmax do not.
bool makes_plan(const AttentionConfig& config);
// The plan that the setting makes for these inputs, if it makes one. Memory belongs to the plan or to `ws`.
std::optional<TilePlan> plan_of(const AttentionInputs& call, const AttentionConfig& config, Workspace& ws, SelectReport* report = nullptr);

}  // namespace winnow::report
