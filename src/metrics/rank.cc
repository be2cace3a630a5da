// Spearman's rank correlation.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "winnow/error.h"
#include "winnow/metrics.h"

namespace winnow {

namespace {

// Ranks from 1; equal values share the average of their ranks.
std::vector<double> average_ranks(std::span<const double> x) {
  std::vector<std::size_t> order(x.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return x[a] < x[b]; });
  std::vector<double> ranks(x.size());
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin + 1;
    while (end < order.size() && x[order[end]] == x[order[begin]]) ++end;
    for (std::size_t i = begin; i < end; ++i) ranks[order[i]] = 0.5 * static_cast<double>(begin + 1 + end);
    begin = end;
  }
  return ranks;
}

}  // namespace

double spearman(std::span<const double> a, std::span<const double> b) {
  if (a.size() != b.size() || a.size() < 2) {
    throw Error("spearman", "expected two lists of one length >= 2, got " + std::to_string(a.size()) + " and " + std::to_string(b.size()));
  }
  const auto is_nan = [](double x) { return std::isnan(x); };
  if (std::ranges::any_of(a, is_nan) || std::ranges::any_of(b, is_nan)) return std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> ra = average_ranks(a);
  const std::vector<double> rb = average_ranks(b);
  const double mean = 0.5 * static_cast<double>(a.size() + 1);
  double covariance = 0.0;
  double var_a = 0.0;
  double var_b = 0.0;
  for (std::size_t i = 0; i < ra.size(); ++i) {
    covariance += (ra[i] - mean) * (rb[i] - mean);
    var_a += (ra[i] - mean) * (ra[i] - mean);
    var_b += (rb[i] - mean) * (rb[i] - mean);
  }
  if (var_a == 0.0 || var_b == 0.0) return std::numeric_limits<double>::quiet_NaN();
  return covariance / std::sqrt(var_a * var_b);
}

}  // namespace winnow
