#include "run/signal_keep.h"

#include <string>
#include <utility>

#include "winnow/error.h"
#include "winnow/select.h"

#include "winnow/error.h"

namespace winnow {

SignalKeep::SignalKeep(const SignalBudget& options) : options_(options) {
  options_.validate();
  if (options_.map == "free") return;
  calibration_ = BudgetCalibration::load(options_.map);
  const PlanSpec tiles;
  if (calibration_.tile_q == tiles.tile_q && calibration_.tile_k == tiles.tile_k) return;
  const auto size = [](auto q, auto k) { return std::to_string(q) + "x" + std::to_string(k); };
  throw Error("budget", options_.map + ": executor: expected tiles of " + size(tiles.tile_q, tiles.tile_k) + ", got " +
                            size(calibration_.tile_q, calibration_.tile_k));
}

std::span<const float> SignalKeep::keep(const StepContext& context, std::int64_t keys, std::int64_t heads, const Diagnostics& diagnostics) {
  const std::span<const double> signal = signals_.find(context, keys, heads);
  if (signal.empty()) return {};
  keep_.resize(signal.size());
  if (options_.map == "free") {
    for (std::size_t h = 0; h < keep_.size(); ++h) {
      keep_[h] = static_cast<float>(free_keep(signal[h], keys, double{options_.mass}, double{options_.between}));
    }
  } else {
    const BudgetMap& map = calibration_.expert(context.expert);
    for (std::size_t h = 0; h < keep_.size(); ++h) keep_[h] = static_cast<float>(map.keep(signal[h]));
    if (calibration_.tokens != keys && !std::exchange(told_length_, true) && diagnostics) {
      const std::string text =
          options_.map + " was made for " + std::to_string(calibration_.tokens) + " keys, and these are " + std::to_string(keys);
      diagnostics({Severity::warning, "budget.other_length", text});
    }
  }
  clamp_and_move(keep_, double{options_.min_keep}, double{options_.max_keep}, double{options_.mean_keep});
  return keep_;
}

void SignalKeep::note(const StepContext& context, std::int64_t keys, const TensorView& inv_l) {
  mean_log_l(inv_l, signals_.store(context, keys, inv_l.size(1)));
}

void SignalKeep::reset() {
  signals_.clear();
  told_length_ = false;
}

}  // namespace winnow
