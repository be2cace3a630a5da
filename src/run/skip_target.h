// The threshold of a skip-softmax call: given, or from a calibration and a target sparsity.
#pragma once

#include <cstdint>
#include <optional>

#include "calib/skip_softmax.h"
#include "exec/registry.h"
#include "winnow/callbacks.h"
#include "winnow/methods.h"
#include "winnow/plan.h"
#include "winnow/steps.h"

namespace winnow {

class SkipTarget {
 public:
  // Loads the calibration that `options` need. Throws Error if there is none, or one whose range the target is not in.
  SkipTarget(const SkipSoftmax& options, const Diagnostics& diagnostics);

  // The calibration's own rule that makes this call dense, or none.
  DenseReason dense_reason(const StepContext& context) const;

  // log2 of the threshold for a sequence of `keys`. Throws Error unless the executor skips what was calibrated.
  float threshold_log2(const StepContext& context, std::int64_t keys, const Executor& executor, const Diagnostics& diagnostics);

  void reset() { told_clamped_ = false; }

 private:
  void check_granule(const Executor& executor) const;

  SkipSoftmax options_;
  std::optional<SkipCalibration> calibration_;  // of target_sparsity
  bool told_clamped_ = false;
};

}  // namespace winnow
