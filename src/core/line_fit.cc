#include "core/line_fit.h"

namespace winnow {

LineFit fit_straight_line(std::span<const std::array<double, 2>> points) {
  LineFit fit;
  const auto n = static_cast<double>(points.size());
  for (const auto& [x, y] : points) {
    fit.mean_x += x / n;
    fit.mean_y += y / n;
  }
  double xx = 0.0;
  double xy = 0.0;
  double yy = 0.0;
  for (const auto& [x, y] : points) {
    xx += (x - fit.mean_x) * (x - fit.mean_x);
    xy += (x - fit.mean_x) * (y - fit.mean_y);
    yy += (y - fit.mean_y) * (y - fit.mean_y);
  }
  fit.slope = xy / xx;
  fit.r2 = xy * xy / (xx * yy);
  return fit;
}

}  // namespace winnow
