// A configuration meets its model: the calibrations of skip-softmax and of budgets.
#include <filesystem>
#include <utility>

#include "calib/budget.h"
#include "calib/magnitudes.h"
#include "calib/skip_softmax.h"
#include "winnow/error.h"
#include "winnow/session.h"

namespace winnow {

namespace {

int experts_of(const std::string& model_directory) {
  return std::filesystem::exists(std::filesystem::path(model_directory) / "transformer_2") ? 2 : 1;
}

void check_model(const std::string& calibration, const std::string& made_for, const std::string& model_directory,
                 const Diagnostics& diagnostics) {
  if (made_for.empty() || !diagnostics || made_for == model_fingerprint(model_directory)) return;
  diagnostics({Severity::warning, "calibration.other_model", calibration + " was made for other weights than those of " + model_directory});
}

void check_budget_calibration(const SignalBudget& budget, const std::string& model_directory, const Diagnostics& diagnostics) {
  if (budget.map == "free") return;
  const BudgetCalibration calibration = BudgetCalibration::load(budget.map);
  for (int expert = 0; expert < experts_of(model_directory); ++expert) calibration.expert(expert);
  check_model(budget.map, calibration.model, model_directory, diagnostics);
}

}  // namespace

AttentionConfig with_model_calibration(AttentionConfig config, const std::string& model_directory, const Diagnostics& diagnostics) {
  if (config.budget) check_budget_calibration(*config.budget, model_directory, diagnostics);
  auto* skip = std::get_if<SkipSoftmax>(&config.method);
  if (skip == nullptr || !skip->target_sparsity) return config;
  if (skip->calibration.empty()) skip->calibration = find_skip_calibration(model_directory);
  if (skip->calibration.empty()) {
    throw Error("calibration", "target_sparsity: " + model_directory +
                                   " has no calibration: make one with winnow calibrate skip-softmax --model " + model_directory +
                                   ", name one with the key calibration, or give threshold instead");
  }
  const SkipCalibration calibration = SkipCalibration::load(skip->calibration);
  for (int expert = 0; expert < experts_of(model_directory); ++expert) calibration.factor(expert, *skip->target_sparsity);
  check_model(skip->calibration, calibration.model, model_directory, diagnostics);
  return config;
}

StepCacheConfig with_model_calibration(StepCacheConfig config, const std::string& model_directory, const Diagnostics& diagnostics) {
  auto* mag = std::get_if<MagCache>(&config.method);
  if (mag == nullptr || mag->calibration.empty()) return config;
  MagnitudeCalibration calibration = MagnitudeCalibration::load(mag->calibration);
  check_model(mag->calibration, calibration.model, model_directory, diagnostics);
  mag->ratios = std::move(calibration.ratios);
  mag->calibration.clear();
  config.validate();
  return config;
}

}  // namespace winnow
