#include "run/skip_target.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "winnow/error.h"

namespace winnow {

namespace {

std::string granule_text(int rows, int keys) { return std::to_string(rows) + " x " + std::to_string(keys); }

}  // namespace

SkipTarget::SkipTarget(const SkipSoftmax& options, const Diagnostics& diagnostics) : options_(options) {
  if (!options.target_sparsity) return;
  if (options.calibration.empty()) {
    throw Error("session",
                "target_sparsity: needs a calibration of the model, and there is none: make one with winnow calibrate skip-softmax, "
                "name one with the key calibration, or give threshold instead");
  }
  calibration_ = SkipCalibration::load(options.calibration);
  for (std::size_t e = 0; e < calibration_->experts.size(); ++e) {
    if (calibration_->experts[e]) calibration_->factor(static_cast<int>(e), *options.target_sparsity);  // in the fitted range?
  }
  if (calibration_->rows == 0 && diagnostics) {
    diagnostics({Severity::warning, "calibration.no_granularity",
                 "the calibration does not state the tile sizes of its skip test: the sparsity reached here will differ from its target"});
  }
}

DenseReason SkipTarget::dense_reason(const StepContext& context) const {
  if (!calibration_) return DenseReason::none;
  const SkipCalibration::Expert& expert = calibration_->expert(context.expert);
  if (context.step < expert.dense_steps) return DenseReason::skip_first_steps;
  return std::ranges::binary_search(expert.dense_layers, context.layer) ? DenseReason::dense_layers : DenseReason::none;
}

void SkipTarget::check_granule(const Executor& executor) const {
  const SkipGranule& unit = executor.granule;
  if (unit.rows == 0) throw Error("session", std::string("executor: expected one with skip-softmax, got ") + executor.name);
  if (!calibration_ || calibration_->rows == 0) return;
  if (unit.order == SkipGranule::Order::last_first) {
    throw Error("session", std::string("calibration: expected one for the order of ") + executor.name + ", last keys first, got ascending");
  }
  if (calibration_->rows != unit.rows || calibration_->keys != unit.keys) {
    throw Error("session", std::string("calibration: expected one for ") + executor.name + ", which skips " +
                               granule_text(unit.rows, unit.keys) + " tiles, got one for " + calibration_->executor + " with " +
                               granule_text(calibration_->rows, calibration_->keys));
  }
}

float SkipTarget::threshold_log2(const StepContext& context, std::int64_t keys, const Executor& executor, const Diagnostics& diagnostics) {
  check_granule(executor);
  if (!calibration_) return std::log2(options_.threshold.value_or(SkipSoftmax::kDefaultThreshold));
  const double factor = calibration_->factor(context.expert, *options_.target_sparsity);
  const double threshold = factor / static_cast<double>(std::max<std::int64_t>(keys, 1));
  if (threshold > 1.0 && !std::exchange(told_clamped_, true) && diagnostics) {
    diagnostics({Severity::warning, "skip_softmax.clamped",
                 "the calibrated factor exceeds the sequence length: the threshold is clamped to 1, and fewer tiles are skipped than "
                 "asked for"});
  }
  return static_cast<float>(std::log2(std::min(threshold, 1.0)));
}

}  // namespace winnow
