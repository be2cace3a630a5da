#include "report/fit.h"

#include <algorithm>
#include <cmath>

namespace winnow::report {

namespace {

constexpr double kTolerance = 0.015;  // of the target
constexpr int kMostMeasurements = 12;
constexpr double kNarrow = 0.004;  // of the knob's range: whole tiles have no density in between

}  // namespace

std::size_t KnobFit::measure(double position) {
  const auto at = std::lower_bound(samples_.begin(), samples_.end(), position,
                                   [](const Sample& sample, double value) { return sample.position < value; });
  const Sample sample = {position, density_(entry_.at(position))};
  return static_cast<std::size_t>(samples_.insert(at, sample) - samples_.begin());
}

Fitted KnobFit::fit(double target) {
  if (samples_.empty()) {
    measure(0.0);
    measure(1.0);
  }
  const auto distance = [target](const Sample& sample) { return std::abs(sample.density - target); };
  // The densest that is not above the target, so that methods that keep whole tiles end on the same number of them.
  const auto best = [&] {
    return *std::min_element(samples_.begin(), samples_.end(), [&](const Sample& a, const Sample& b) {
      const bool a_above = a.density > target * (1.0 + kTolerance);
      const bool b_above = b.density > target * (1.0 + kTolerance);
      return a_above != b_above ? b_above : distance(a) < distance(b);
    });
  };
  for (int n = 0; n < kMostMeasurements && distance(best()) > kTolerance * target; ++n) {
    const auto above = std::find_if(samples_.begin(), samples_.end(), [&](const Sample& sample) { return sample.density > target; });
    if (above == samples_.begin() || above == samples_.end()) break;  // out of reach
    const Sample low = *(above - 1);
    const Sample high = *above;
    const double width = high.position - low.position;
    if (width < kNarrow) break;  // a step that jumps over the target
    // A straight line first; halving every second time, so that a curve cannot hold one end in place.
    const double share = n % 2 == 0 ? (target - low.density) / (high.density - low.density) : 0.5;
    measure(low.position + width * std::clamp(share, 0.02, 0.98));
  }
  const Sample found = best();
  return {entry_.at(found.position), found.density};
}

}  // namespace winnow::report
