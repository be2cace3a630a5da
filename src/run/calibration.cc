// A configuration meets its model: the calibration of skip-softmax.
#include <filesystem>

#include "calib/skip_softmax.h"
#include "winnow/error.h"
#include "winnow/session.h"

namespace winnow {

AttentionConfig with_model_calibration(AttentionConfig config, const std::string& model_directory, const Diagnostics& diagnostics) {
  auto* skip = std::get_if<SkipSoftmax>(&config.method);
  if (skip == nullptr || !skip->target_sparsity) return config;
  if (skip->calibration.empty()) skip->calibration = find_skip_calibration(model_directory);
  if (skip->calibration.empty()) {
    throw Error("calibration", "target_sparsity: " + model_directory +
                                   " has no calibration: make one with winnow calibrate skip-softmax --model " + model_directory +
                                   ", name one with the key calibration, or give threshold instead");
  }
  const SkipCalibration calibration = SkipCalibration::load(skip->calibration);
  const int experts = std::filesystem::exists(std::filesystem::path(model_directory) / "transformer_2") ? 2 : 1;
  for (int expert = 0; expert < experts; ++expert) calibration.factor(expert, *skip->target_sparsity);
  if (!calibration.model.empty() && diagnostics && calibration.model != model_fingerprint(model_directory)) {
    diagnostics(
        {Severity::warning, "calibration.other_model", skip->calibration + " was made for other weights than those of " + model_directory});
  }
  return config;
}

}  // namespace winnow
