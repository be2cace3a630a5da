// From mean ln l per head to the share of key tiles that the head keeps. See include/winnow/budget.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "winnow/budget.h"
#include "winnow/steps.h"
#include "winnow/tensor.h"

namespace winnow {

// out[h] = mean over B and Sq of ln l = -ln inv_l, inv_l [B,H,Sq] f32. Rows without keys (0) are left out; NaN for a head whose
// rows are all empty or not all finite.
void mean_log_l(const TensorView& inv_l, std::span<double> out);

double normal_cdf(double x);
double normal_quantile(double p);  // of p in (0,1)

// Of the map "free". 1 where the signal is not finite.
double free_keep(double mean_log_l, std::int64_t keys, double mass, double between);

// Sparsity as a function of x = ln(largest weight) = -mean ln l, by straight lines between points, constant outside them.
struct BudgetMap {
  std::vector<double> x, sparsity;  // x ascending, at least one
  double keep(double mean_log_l) const;
};

// Least squares line, at the ends of the x of the points. Points (x, sparsity), at least two different x. Throws Error.
BudgetMap fit_line(std::span<const std::array<double, 2>> points);
// The best non-decreasing function (pool adjacent violators).
BudgetMap fit_isotonic(std::span<const std::array<double, 2>> points);
// Moves the map so that a share `overshoot` of the points lies below it: how often it may promise more sparsity than there is.
void make_safe(BudgetMap& map, std::span<const std::array<double, 2>> points, double overshoot);

// Each clamped to [low, high]; with mean > 0 all are moved by the same amount first, so that this is their mean.
void clamp_and_move(std::span<float> keep, double low, double high, double mean);

// The signals of a session's layers, one vector of heads per (expert, branch, layer). After the first call of a session it
// allocates nothing.
class HeadSignals {
 public:
  // Empty if there is none for this call.
  std::span<const double> find(const StepContext& context, std::int64_t keys, std::int64_t heads) const;
  // Where to write the signal of this call.
  std::span<double> store(const StepContext& context, std::int64_t keys, std::int64_t heads);
  void clear();

 private:
  std::size_t place(const StepContext& context) const;
  std::int64_t layers_ = 0, heads_ = 0;
  std::vector<double> values_;      // [expert, branch, layer, head]
  std::vector<std::int64_t> keys_;  // [expert, branch, layer]; 0: none
};

}  // namespace winnow
