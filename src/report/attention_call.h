// One attention call under the microscope: error against the f64 reference, density, recall and times.
#pragma once

#include <optional>
#include <string>

#include "winnow/callbacks.h"
#include "winnow/metrics.h"
#include "winnow/select.h"
#include "winnow/session.h"
#include "winnow/tensor.h"

namespace winnow::report {

struct CallErrors {
  double rel_l1 = 0.0, rel_l2 = 0.0, cosine = 0.0;
};

struct CallOptions {
  int rows = 256;             // query rows compared with the reference, evenly spaced
  int repeat = 20;            // timed calls of the method and of dense each, interleaved; the median counts
  double max_seconds = 20.0;  // stops repeating after this long, but not before three calls
  bool recall = true;         // costs one dense pass in f32
  Progress progress;          // stages "reference", "recall", "timing"
};

struct CallMeasurement {
  std::string executor;
  double density = 1.0;
  CallErrors errors;             // of the method against the reference
  CallErrors dense_errors;       // of dense attention on the same executor: what no method can be expected to beat
  std::int64_t rows = 0;         // compared, per batch and head
  std::optional<Recall> recall;  // unset for methods that keep no plan of their own: dense, skip_softmax
  int repeat = 0;                // timed calls
  double plan_seconds = 0.0;     // medians
  double kernel_seconds = 0.0;
  double dense_seconds = 0.0;  // dense call, its (trivial) plan included
  double total_seconds() const { return plan_seconds + kernel_seconds; }
  double plan_share() const { return total_seconds() > 0.0 ? plan_seconds / total_seconds() : 0.0; }
  double speedup() const { return total_seconds() > 0.0 ? dense_seconds / total_seconds() : 0.0; }
};

// q [B,Sq,H,D]  k, v [B,Sk,Hk,D]. The setting's gates are ignored: there is no step here. Throws Error, Cancelled.
CallMeasurement measure_call(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionConfig& config,
                             const CallOptions& options);

// The plan that the setting makes for these inputs; unset for dense and skip_softmax. Memory belongs to the plan or to `ws`.
std::optional<TilePlan> plan_of(const TensorView& q, const TensorView& k, const AttentionConfig& config, Workspace& ws);

}  // namespace winnow::report
