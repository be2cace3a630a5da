// One attention call from gate to statistics: what a model's self-attention calls.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "winnow/attend.h"
#include "winnow/budget.h"
#include "winnow/callbacks.h"
#include "winnow/methods.h"
#include "winnow/plan.h"
#include "winnow/step_cache.h"
#include "winnow/steps.h"
#include "winnow/tensor.h"

namespace winnow {

struct AttentionConfig {
  Method method = Dense{};
  GateOptions gate;
  TokenOptions tokens;
  std::optional<SignalBudget> budget;  // of methods that take budgets per head; unset: the method's own
  std::string executor;                // empty: chosen
  // A cost profile of this machine (winnow info --measure): sparse calls whose planning would not pay run dense. Empty: of
  // WINNOW_PROFILE, else at the default place if there is one; "none": no such rule.
  std::string profile;
  void validate() const;
  const char* method_name() const;  // "mean_pool"
};

// A method's name ("mean_pool"), a path to a JSON file, or JSON text: {"method":"mean_pool","cdf":0.9,"skip_first_steps":2}.
// Keys that are not named keep their defaults; unknown keys, wrong types and values out of range throw Error naming the key.
AttentionConfig parse_attention_config(std::string_view name_file_or_json);
std::string to_json(const AttentionConfig& config);  // every key that has a value, one line

// What the selector of a sparse call gets: the layouts that this sequence and configuration ask for. Throws Error if the context
// contradicts itself or does not fit q and k.
PlanSpec plan_spec(const AttentionConfig& config, const StepContext& context, const TensorView& q, const TensorView& k);

// For skip_softmax with target_sparsity and a model: names the model directory's own calibration if the configuration names none,
// checks that the calibration covers the model's experts and the target, and tells `diagnostics` if it was made for another
// model. The same checks for the calibration that a budget names. Other configurations come back unchanged. Throws Error.
AttentionConfig with_model_calibration(AttentionConfig config, const std::string& model_directory, const Diagnostics& diagnostics = {});
// For magcache with a calibration: puts its ratios in place of its name, and tells `diagnostics` if it was made for another model.
// Other configurations come back unchanged. Throws Error.
StepCacheConfig with_model_calibration(StepCacheConfig config, const std::string& model_directory, const Diagnostics& diagnostics = {});

struct CallReport {
  DenseReason reason = DenseReason::none;  // none: ran sparse
  double density = 1.0;                    // FLOP-weighted; skip-softmax counts (QK + kept PV) / 2
  double pairs = 0.0;                      // query-key pairs of dense attention, the weight of this density
  SelectReport selected;                   // of a method that selects tiles, on a sparse call
  bool signal_budget = false;              // whether 1/l of an earlier call set the budgets
  double plan_seconds = 0.0;
  double attend_seconds = 0.0;
  const char* executor = "";
};

struct SessionTotals {
  std::int64_t calls = 0;
  std::array<std::int64_t, kNumDenseReasons> by_reason{};  // index: DenseReason; none = sparse calls
  double pairs = 0.0;
  double computed_pairs = 0.0;
  double plan_seconds = 0.0;
  double attend_seconds = 0.0;
  const char* executor = "";  // of the last call
  double density() const { return pairs > 0 ? computed_pairs / pairs : 1.0; }
};

class AttentionSession {
 public:
  // Throws Error if the configuration is invalid, the named executor does not run here, or a file that it names cannot be loaded.
  explicit AttentionSession(AttentionConfig config, Diagnostics diagnostics = {});
  ~AttentionSession();
  AttentionSession(AttentionSession&&) noexcept;

  const AttentionConfig& config() const;
  // gate -> select -> attend -> stats. Shapes as in attend(). All memory from `ws`, given back before returning.
  CallReport attend(const StepContext& context, const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out,
                    Workspace& ws, const AttendOptions& options = {});
  const SessionTotals& totals() const;
  // Forgets totals and the once-per-run diagnostics.
  void reset();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace winnow
