#include "steps/budget.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "core/line_fit.h"
#include "core/text.h"
#include "winnow/error.h"

namespace winnow {

namespace {

constexpr std::int64_t kExperts = 2;
constexpr std::int64_t kBranches = 2;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void check(const char* key, float value, float low, float high, bool open_low, bool open_high) {
  const bool good = (open_low ? value > low : value >= low) && (open_high ? value < high : value <= high);
  if (good) return;
  throw Error("config", std::string("budget.") + key + ": expected a number in " + (open_low ? "(" : "[") + short_number(low) + "," +
                            short_number(high) + (open_high ? ")" : "]") + ", got " + short_number(value));
}

double head_mean(const TensorView& inv_l, std::int64_t h) {
  double sum = 0.0;
  std::int64_t rows = 0;
  for (std::int64_t b = 0; b < inv_l.size(0); ++b) {
    const float* row = inv_l.as<float>() + b * inv_l.stride(0) + h * inv_l.stride(1);
    for (std::int64_t i = 0; i < inv_l.size(2); ++i) {
      const float x = row[i * inv_l.stride(2)];
      if (x == 0.0F) continue;
      sum -= std::log(double{x});
      ++rows;
    }
  }
  const double mean = rows > 0 ? sum / static_cast<double>(rows) : kNan;
  return std::isfinite(mean) ? mean : kNan;
}

std::vector<std::array<double, 2>> by_x(std::span<const std::array<double, 2>> points) {
  std::vector<std::array<double, 2>> sorted(points.begin(), points.end());
  std::sort(sorted.begin(), sorted.end());
  if (sorted.empty()) throw Error("budget", "points: expected some, got none");
  return sorted;
}

double mean_moved(std::span<const float> keep, double by, double low, double high) {
  double sum = 0.0;
  for (const float k : keep) sum += std::clamp(double{k} + by, low, high);
  return sum / static_cast<double>(keep.size());
}

}  // namespace

void SignalBudget::validate() const {
  if (map.empty()) throw Error("config", "budget.map: expected free or a calibration file, got nothing");
  check("mass", mass, 0.0F, 1.0F, true, true);
  check("between", between, 0.0F, 1.0F, false, false);
  const SignalBudget defaults;
  if (map != "free" && (mass != defaults.mass || between != defaults.between)) {
    throw Error("config", "budget.map: expected free beside mass or between, got " + map);
  }
  check("min_keep", min_keep, 0.0F, 1.0F, true, false);
  check("max_keep", max_keep, min_keep, 1.0F, false, false);
  if (mean_keep != 0.0F) check("mean_keep", mean_keep, min_keep, max_keep, false, false);  // the clamps would keep others out of reach
}

void mean_log_l(const TensorView& inv_l, std::span<double> out) {
  for (std::size_t h = 0; h < out.size(); ++h) out[h] = head_mean(inv_l, static_cast<std::int64_t>(h));
}

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

double normal_quantile(double p) {
  double low = -40.0;
  double high = 40.0;
  for (int i = 0; i < 80; ++i) {
    const double middle = 0.5 * (low + high);
    (normal_cdf(middle) < p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

double free_keep(double mean_log_l, std::int64_t keys, double mass, double between) {
  if (!std::isfinite(mean_log_l) || keys < 1) return 1.0;
  const double widest = std::sqrt(2.0 * std::log(static_cast<double>(keys)));
  const double sigma = std::max(0.0, widest - std::sqrt(2.0 * std::max(0.0, mean_log_l)));
  return normal_cdf(normal_quantile(mass) - std::sqrt(between) * sigma);
}

double BudgetMap::keep(double mean_log_l) const {
  if (!std::isfinite(mean_log_l)) return 1.0;
  const double at = -mean_log_l;
  const auto above = static_cast<std::size_t>(std::upper_bound(x.begin(), x.end(), at) - x.begin());
  if (above == 0) return 1.0 - sparsity.front();
  if (above == x.size()) return 1.0 - sparsity.back();
  const double share = (at - x[above - 1]) / (x[above] - x[above - 1]);
  return 1.0 - (sparsity[above - 1] + share * (sparsity[above] - sparsity[above - 1]));
}

BudgetMap fit_line(std::span<const std::array<double, 2>> points) {
  const std::vector<std::array<double, 2>> sorted = by_x(points);
  const double low = sorted.front()[0];
  const double high = sorted.back()[0];
  if (!(high > low)) throw Error("budget", "points: expected different signals, got one");
  const LineFit line = fit_straight_line(sorted);
  const auto at = [&](double value) { return std::clamp(line.at(value), 0.0, 1.0); };
  return {{low, high}, {at(low), at(high)}};
}

BudgetMap fit_isotonic(std::span<const std::array<double, 2>> points) {
  struct Pool {
    double x_sum, y_sum, count;
  };
  std::vector<Pool> pools;
  for (const auto& [px, py] : by_x(points)) {
    pools.push_back({px, py, 1.0});
    while (pools.size() > 1) {
      const Pool last = pools.back();
      Pool& before = pools[pools.size() - 2];
      const bool ordered = before.y_sum / before.count < last.y_sum / last.count && before.x_sum / before.count < last.x_sum / last.count;
      if (ordered) break;
      before = {before.x_sum + last.x_sum, before.y_sum + last.y_sum, before.count + last.count};
      pools.pop_back();
    }
  }
  BudgetMap map;
  for (const Pool& pool : pools) {
    map.x.push_back(pool.x_sum / pool.count);
    map.sparsity.push_back(pool.y_sum / pool.count);
  }
  return map;
}

void make_safe(BudgetMap& map, std::span<const std::array<double, 2>> points, double overshoot) {
  std::vector<double> residuals;  // what there is minus what the map promises
  for (const auto& [px, py] : points) residuals.push_back(py - (1.0 - map.keep(-px)));
  if (residuals.empty()) return;
  std::sort(residuals.begin(), residuals.end());
  const double at = overshoot * static_cast<double>(residuals.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, residuals.size() - 1);
  const double offset = residuals[below] + (at - static_cast<double>(below)) * (residuals[above] - residuals[below]);
  for (double& s : map.sparsity) s = std::clamp(s + std::min(0.0, offset), 0.0, 1.0);
}

void clamp_and_move(std::span<float> keep, double low, double high, double mean) {
  double by = 0.0;
  if (mean > 0.0 && !keep.empty()) {
    const double target = std::clamp(mean, low, high);
    double least = -1.0;
    double most = 1.0;
    for (int i = 0; i < 60; ++i) {
      by = 0.5 * (least + most);
      (mean_moved(keep, by, low, high) < target ? least : most) = by;
    }
  }
  for (float& k : keep) k = static_cast<float>(std::clamp(double{k} + by, low, high));
}

std::size_t HeadSignals::place(const StepContext& context) const {
  const std::int64_t branch = context.branch == Branch::conditional ? 0 : 1;
  return static_cast<std::size_t>((context.expert * kBranches + branch) * layers_ + context.layer);
}

std::span<const double> HeadSignals::find(const StepContext& context, std::int64_t keys, std::int64_t heads) const {
  if (context.expert >= kExperts || context.layer >= layers_ || heads != heads_) return {};
  const std::size_t at = place(context);
  if (keys_[at] != keys) return {};
  return std::span(values_).subspan(at * static_cast<std::size_t>(heads_), static_cast<std::size_t>(heads_));
}

std::span<double> HeadSignals::store(const StepContext& context, std::int64_t keys, std::int64_t heads) {
  if (context.expert >= kExperts) return {};
  if (context.num_layers > layers_ || context.layer >= layers_ || heads != heads_) {
    layers_ = std::max<std::int64_t>(context.num_layers, context.layer + 1);
    heads_ = heads;
    keys_.assign(static_cast<std::size_t>(kExperts * kBranches * layers_), 0);
    values_.assign(keys_.size() * static_cast<std::size_t>(heads_), kNan);
  }
  const std::size_t at = place(context);
  keys_[at] = keys;
  return std::span(values_).subspan(at * static_cast<std::size_t>(heads_), static_cast<std::size_t>(heads_));
}

void HeadSignals::clear() {
  layers_ = heads_ = 0;
  keys_.clear();
  values_.clear();
}

}  // namespace winnow
