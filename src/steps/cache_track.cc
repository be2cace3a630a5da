#include "steps/cache_track.h"

#include <cmath>
#include <string>

#include "winnow/error.h"

namespace winnow {

namespace {

float threshold(const StepCacheConfig& config, int expert) {
  return std::visit(
      [&]<class Options>(const Options& options) {
        if constexpr (requires { options.threshold_high; }) {
          return expert == 0 ? options.threshold_high : options.threshold_low;
        }
        return 0.0F;
      },
      config.method);
}

double polynomial(const std::vector<double>& coefficients, double x) {
  double y = 0.0;
  for (const double c : coefficients) y = y * x + c;
  return y;
}

// The table's value for step `index` of `count`.
double nearest(const std::vector<double>& table, int index, int count) {
  if (table.empty()) return 1.0;
  const auto last = static_cast<double>(table.size() - 1);
  const double at = count > 1 ? std::round(index * last / (count - 1)) : 0.0;
  return table[static_cast<std::size_t>(at)];
}

}  // namespace

std::vector<CachePlace> cache_places(std::span<const int> expert_of_step) {
  std::vector<CachePlace> places;
  const int steps = static_cast<int>(expert_of_step.size());
  for (int begin = 0; begin < steps;) {
    const int expert = expert_of_step[static_cast<std::size_t>(begin)];
    if (expert != 0 && expert != 1) throw Error("cache", "expert_of_step: expected 0 or 1, got " + std::to_string(expert));
    int end = begin;
    while (end < steps && expert_of_step[static_cast<std::size_t>(end)] == expert) ++end;
    for (int step = begin; step < end; ++step) places.push_back({expert, step, step - begin, end - begin});
    begin = end;
  }
  return places;
}

void CacheTrack::forget() {
  has_reference_ = false;
  skips_ = 0;
  sum_ = 0.0;
  product_ = 1.0;
}

CacheReason CacheTrack::computed(CacheReason reason) {
  forget();  // until end()
  return reason;
}

CacheReason CacheTrack::reused() {
  ++skips_;
  return CacheReason::reused;
}

std::optional<CacheReason> CacheTrack::rule(const CachePlace& place) const {
  if (threshold(*config_, place.expert) == 0.0F) return CacheReason::disabled;
  if (place.last()) return CacheReason::last_step;
  if (place.index == 0) return CacheReason::first_step;
  const auto* mag = std::get_if<MagCache>(&config_->method);
  const double retained = mag != nullptr ? double{mag->retention} * place.count : 0.0;
  if (place.index < config_->warm_up_steps || place.index < retained) return CacheReason::warm_up;
  if (!has_reference_) return CacheReason::no_reference;
  if (skips_ >= config_->max_consecutive_skips) return CacheReason::max_skips;
  return std::nullopt;
}

std::optional<CacheReason> CacheTrack::begin(const CachePlace& place, Branch branch) {
  // What happened in a step that was left out, or that did not end, is not known.
  if (open_ || place.step != last_step_ + 1 || place.expert != place_.expert) forget();
  open_ = true;
  last_step_ = place.step;
  place_ = place;
  if (const auto decided = rule(place)) return computed(*decided);
  if (std::holds_alternative<MagCache>(config_->method)) return advance_magnitudes(place, branch);
  return std::nullopt;
}

CacheReason CacheTrack::advance_magnitudes(const CachePlace& place, Branch branch) {
  const auto& mag = std::get<MagCache>(config_->method);
  const MagnitudeRatios& ratios = place.expert == 0 ? mag.ratios.high : mag.ratios.low;
  const bool own = branch == Branch::unconditional && !ratios.unconditional.empty();
  product_ *= nearest(own ? ratios.unconditional : ratios.conditional, place.index, place.count);
  sum_ += std::abs(1.0 - product_);
  return sum_ < double{threshold(*config_, place.expert)} ? reused() : computed(CacheReason::changed);
}

CacheReason CacheTrack::decide(const CacheSums& sums) {
  double change = sums.change / sums.reference;
  if (!std::isfinite(change)) return computed(CacheReason::non_finite);
  bool adds_up = false;
  if (const auto* tea = std::get_if<TeaCache>(&config_->method)) {
    const bool low = place_.expert == 1 && !tea->coefficients_low.empty();
    change = polynomial(low ? tea->coefficients_low : tea->coefficients, change);
    adds_up = true;
  } else if (const auto* first = std::get_if<FirstBlockCache>(&config_->method)) {
    adds_up = first->accumulate;
  }
  if (adds_up) change = sum_ += change;
  return change < double{threshold(*config_, place_.expert)} ? reused() : computed(CacheReason::changed);
}

CacheReason CacheTrack::follow(const CacheSums& sums, bool other_reused) {
  if (!std::isfinite(sums.change / sums.reference)) return computed(CacheReason::non_finite);
  return other_reused ? reused() : computed(CacheReason::conditional);
}

void CacheTrack::end() {
  open_ = false;
  has_reference_ = true;
}

}  // namespace winnow
