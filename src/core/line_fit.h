// A straight line through points, by least squares.
#pragma once

#include <array>
#include <span>

namespace winnow {

struct LineFit {
  double mean_x = 0.0, mean_y = 0.0;  // of the points: the line goes through them
  double slope = 0.0;
  double r2 = 0.0;  // share of the variance of y that the line explains
  double at(double x) const { return mean_y + slope * (x - mean_x); }
};
// Points (x, y) with at least two different x; slope and r2 are not finite otherwise.
LineFit fit_straight_line(std::span<const std::array<double, 2>> points);

}  // namespace winnow
