// The comparison harness: the same generation under several attention settings, timed side by side and measured against dense.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "winnow/engine.h"
#include "winnow/session.h"

namespace winnow::report {

struct Setting {
  std::string label;  // names rows and files: "mean_pool", "mean_pool-2", "floor"
  AttentionConfig attention;
  StepCacheConfig cache = {};
  bool is_floor = false;  // dense by another executor: how far two exact kernels are apart. Run once, since it is not timed against.
};

// How far a run's frames are from dense's.
struct Quality {
  double psnr_db = 0.0;
  std::optional<double> ssim;  // unset if a frame is smaller than SSIM's window
  std::vector<double> psnr_per_frame;
  std::vector<double> ssim_per_frame;
};

struct Outcome {
  Setting setting;
  std::vector<double> all_seconds;  // of every repetition, in order; denoising, planning included
  double seconds = 0.0;             // the smallest
  GenerateReport report;            // of the fastest repetition
  Tensor latents;                   // of the first repetition
  Tensor frames;
  // Against dense; unset in the dense outcome itself and if no dense run was asked for.
  std::optional<double> speedup;   // dense seconds / seconds
  std::optional<Quality> quality;  // also unset if the model has no codec
  std::optional<double> latents_rel_l2;

  double attention_seconds() const { return report.attention.plan_seconds + report.attention.attend_seconds; }
  // Share of the run spent in self-attention, planning included.
  double attention_share() const { return report.seconds > 0.0 ? attention_seconds() / report.seconds : 0.0; }
};

struct Comparison {
  std::vector<Outcome> outcomes;  // in the order of the settings
  std::optional<std::size_t> dense;
  // Amdahl: the speed-up over dense if self-attention took no time at all. Unset without a dense run.
  std::optional<double> attention_bound() const;
};

// Engine::generate, or a stand-in for it in tests.
using Generate = std::function<GenerateResult(const GenerateOptions&)>;
// Called before each run, with its index and the number of all runs.
using RunBegins = std::function<void(const Setting& setting, int run, int num_runs)>;

// Dense attention, every step computed, by the executor that runs by default: what others are measured against.
bool is_dense(const Setting& setting);

// Runs every setting `repeat` times, interleaved (A B C A B C), so that a slow spell of the machine hits all of them.
// The first setting that is_dense() is what the others are measured against.
// options.attention and options.cache are replaced by each setting's; options.progress passes through, and Cancelled with it. Throws Error.
Comparison compare(const Generate& generate, const GenerateOptions& options, const std::vector<Setting>& settings, int repeat,
                   const RunBegins& run_begins = {});
Comparison compare(Engine& engine, const GenerateOptions& options, const std::vector<Setting>& settings, int repeat,
                   const RunBegins& run_begins = {});

// Dense attention by another instruction set than the one that runs by default on `dtype`; unset if this machine has no other
// that is reasonably fast (scalar code and the f64 reference are not).
std::optional<AttentionConfig> dense_floor(DType dtype);

// "mean_pool  density 0.31  1.62x  34.1 dB  SSIM 0.981", and "22 of 60 forwards reused" of one with a step cache
std::string describe(const Outcome& outcome);

// Where the starting noise of a run is from, for metadata: ("latents", its file) or ("seed", the number).
std::pair<std::string, std::string> noise_source(const GenerateOptions& options);

// What --attention takes to run a setting again, as JSON text; keys that are unset are left out.
std::string setting_text(const AttentionConfig& config);

// What the report says about the run besides its numbers.
struct RunInfo {
  std::string model;
  int fps = 0;
  Precision precision = Precision::bf16;
};
// JSON text. Keys without a value are left out: there are no nulls.
//   {"model","prompt","seed","steps","width",...,"dense":{"seconds","attention_share","attention_bound",...},
//    "runs":[{"method","setting","seconds","speedup","density","psnr_db","ssim",...}], "machine":{...}, "version"}
// "runs" holds everything but the dense run; "setting" is text that --attention takes; per-step records are under "steps_run".
std::string to_json(const Comparison& comparison, const GenerateOptions& options, const RunInfo& info);

}  // namespace winnow::report
