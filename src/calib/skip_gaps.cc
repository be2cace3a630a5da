// Sparsity as a function of the factor, from tile maxima, and its fit.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "calib/skip_softmax.h"
#include "core/line_fit.h"
#include "core/text.h"
#include "winnow/error.h"

namespace winnow {

namespace {

// Bins of log2(factor): 1/64 wide, so that rounding a granule into its bin moves the factor by at most 1.1 %.
constexpr int kPerOctave = 64;
constexpr double kLowest = -40.0;  // factors below 1e-12 skip nothing that anybody would notice
constexpr double kHighest = 40.0;  // sequence lengths up to 2^40
constexpr int kBins = static_cast<int>((kHighest - kLowest) * kPerOctave) + 1;
constexpr double kLeastSparsity = 0.05;
constexpr double kMostSparsity = 0.9;

constexpr double kLinear = 0.98;

// The line x = ln a + b s through points (s, x) with ascending s.
SkipFit fit_factors(const std::vector<std::array<double, 2>>& points) {
  const LineFit line = fit_straight_line(points);
  return {.a = std::exp(line.at(0.0)), .b = line.slope, .r2 = line.r2, .lowest = points.front()[0], .highest = points.back()[0]};
}

}  // namespace

SkipGaps::SkipGaps() : below_(kBins, 0) {}

void SkipGaps::add(std::span<const float> gaps_log2, std::int64_t keys) {
  const double shift = std::log2(static_cast<double>(keys));
  total_ += static_cast<std::int64_t>(gaps_log2.size());
  for (const float gap : gaps_log2) {
    if (!(gap < 0.0F)) continue;  // no threshold up to 1 skips it
    // Skipped if log2(factor) > gap + shift: in the bin that ends at or above that.
    const double bin = std::ceil((double{gap} + shift - kLowest) * kPerOctave);
    ++below_[static_cast<std::size_t>(std::clamp(bin, 0.0, double{kBins - 1}))];
  }
}

void SkipGaps::add_bins(const std::vector<std::int64_t>& bins, std::int64_t count) {
  const auto bad = [](std::int64_t n) { return n < 0; };
  if (bins.size() != below_.size() || std::any_of(bins.begin(), bins.end(), bad) ||
      std::accumulate(bins.begin(), bins.end(), std::int64_t{0}) > count) {
    throw Error("calibration", "gaps: expected " + std::to_string(below_.size()) + " counts of at most all granules");
  }
  for (std::size_t i = 0; i < bins.size(); ++i) below_[i] += bins[i];
  total_ += count;
}

double SkipGaps::sparsity(double factor) const {
  if (total_ == 0) return 0.0;
  const double last = std::floor((std::log2(factor) - kLowest) * kPerOctave);
  std::int64_t skipped = 0;
  for (int bin = 0; bin < kBins && bin <= last; ++bin) skipped += below_[static_cast<std::size_t>(bin)];
  return static_cast<double>(skipped) / static_cast<double>(total_);
}

SkipFit SkipGaps::fit(int points) const {
  // ln factor at the first and the last bin whose sparsity counts.
  std::int64_t skipped = 0;
  double first = 0.0;
  double last = -1.0;
  const double ln2 = std::log(2.0);
  bool started = false;
  std::int64_t previous = -1;
  for (int bin = 0; bin < kBins; ++bin) {
    skipped += below_[static_cast<std::size_t>(bin)];
    const double share = total_ == 0 ? 0.0 : static_cast<double>(skipped) / static_cast<double>(total_);
    if (share <= kLeastSparsity || share >= kMostSparsity || skipped == previous) continue;
    const double x = (kLowest + static_cast<double>(bin) / kPerOctave) * ln2;
    if (!started) first = x;
    started = true;
    last = x;
    previous = skipped;
  }
  std::vector<std::array<double, 2>> kept;  // S, ln factor
  for (int i = 0; i < points && started; ++i) {
    const double x = first + (last - first) * i / (points - 1) + 1e-9;
    const double s = sparsity(std::exp(x));
    if (s > kLeastSparsity && s < kMostSparsity) kept.push_back({s, x});
  }
  if (kept.size() < 10 || kept.back()[0] - kept.front()[0] < 0.05) {
    throw Error("calibration", "sparsity: expected some threshold up to 1 to skip more than a tenth of the tiles, got at most " +
                                   short_number(static_cast<float>(sparsity(std::exp2(kHighest)))) +
                                   ": this model, size and token order leave skip-softmax nothing to do");
  }
  // Near threshold 1 sparsity rises faster than any line: the range is cut from above until the line is one.
  SkipFit fit = fit_factors(kept);
  while (fit.r2 < kLinear && kept.size() > 10) {
    kept.pop_back();
    fit = fit_factors(kept);
  }
  return fit;
}

}  // namespace winnow
