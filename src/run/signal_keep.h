// Shares of tiles to keep per head, from 1/l of a session's earlier calls. See include/winnow/budget.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "calib/budget.h"
#include "steps/budget.h"
#include "winnow/budget.h"
#include "winnow/callbacks.h"
#include "winnow/steps.h"
#include "winnow/tensor.h"

namespace winnow {

class SignalKeep {
 public:
  // Throws Error if the options name a calibration that cannot be loaded.
  explicit SignalKeep(const SignalBudget& options);

  // [heads] valid until the next call; empty if no earlier call says anything about this one. Throws Error if the calibration does
  // not cover the expert.
  std::span<const float> keep(const StepContext& context, std::int64_t keys, std::int64_t heads, const Diagnostics& diagnostics);
  // Takes in what a call over all keys, computed or represented, gave.
  void note(const StepContext& context, std::int64_t keys, const TensorView& inv_l);
  void reset();

 private:
  SignalBudget options_;
  BudgetCalibration calibration_;  // without experts for "free"
  HeadSignals signals_;
  std::vector<float> keep_;
  bool told_length_ = false;
};

}  // namespace winnow
