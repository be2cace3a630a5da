// StepCacheConfig: names, validity and its JSON form. docs/configuration.md lists every key.
#include <cmath>
#include <numeric>

#include "core/options.h"
#include "core/text.h"
#include "winnow/error.h"
#include "winnow/step_cache.h"

namespace winnow {

namespace {

void check_threshold(const char* key, float value) {
  if (!(value >= 0.0F) || std::isinf(value))
    throw Error("config", std::string(key) + ": expected a number >= 0, got " + short_number(value));
}

template <class Options>
void check_thresholds(const Options& options) {
  check_threshold("threshold_high", options.threshold_high);
  check_threshold("threshold_low", options.threshold_low);
}

void check_at_least(const char* key, int value, int least) {
  if (value < least) {
    throw Error("config", std::string(key) + ": expected an integer >= " + std::to_string(least) + ", got " + std::to_string(value));
  }
}

void check_finite(const std::string& key, const std::vector<double>& values) {
  for (const double x : values) {
    if (!std::isfinite(x)) throw Error("config", key + ": expected finite numbers, got " + short_number(x));
  }
}

void check_ratios(const std::string& key, const MagnitudeRatios& ratios) {
  for (const auto* list : {&ratios.conditional, &ratios.unconditional}) {
    check_finite("ratios." + key, *list);
    for (const double x : *list) {
      if (x <= 0.0) throw Error("config", "ratios." + key + ": expected numbers > 0, got " + short_number(x));
    }
  }
}

StepCacheConfig from_json(const nlohmann::json& object) {
  if (!object.is_object()) wrong("cache", "an object {\"method\": ...}", object);
  KeyReader keys(object);
  std::string name;
  keys.read("method", name);
  const std::optional<CacheMethod> method = method_named<CacheMethod>(name);
  if (!method) {
    throw Error("config",
                "method: expected one of " + method_list<CacheMethod>() + ", got " + (name.empty() ? "nothing" : "\"" + name + "\""));
  }
  StepCacheConfig config;
  config.method = *method;
  const auto read = [&](const char* key, auto& value) { keys.read(key, value); };
  std::visit([&]<class Options>(Options& options) { Options::options(options, read); }, config.method);
  if (config.on()) StepCacheConfig::options(config, read);
  keys.finish("method " + name);
  return config;
}

}  // namespace

void FirstBlockCache::validate() const { check_thresholds(*this); }

void TeaCache::validate() const {
  check_thresholds(*this);
  check_finite("coefficients", coefficients);
  check_finite("coefficients_low", coefficients_low);
  if (coefficients.empty()) throw Error("config", "coefficients: expected at least one, those published for this model, got none");
}

void MagCache::validate() const {
  check_thresholds(*this);
  if (!(retention >= 0.0F && retention <= 1.0F))
    throw Error("config", "retention: expected a number in [0,1], got " + short_number(retention));
  check_ratios("high", ratios.high);
  check_ratios("low", ratios.low);
  if (!calibration.empty()) {
    if (ratios != ExpertRatios{}) throw Error("config", "ratios: expected none beside a calibration, got some");
  } else if (threshold_high > 0.0F && ratios.high.conditional.empty()) {
    throw Error("config", "ratios.high.conditional: expected a list, or a calibration, got none");
  }
}

void StepCacheConfig::validate() const {
  check_at_least("max_consecutive_skips", max_consecutive_skips, 1);
  check_at_least("warm_up_steps", warm_up_steps, 1);
  check_at_least("min_steps", min_steps, 0);
  std::visit([](const auto& options) { options.validate(); }, method);
}

const char* StepCacheConfig::method_name() const { return winnow::method_name(method); }

StepCacheConfig parse_step_cache_config(std::string_view name_file_or_json) {
  const auto given = name_or_json<CacheMethod>(name_file_or_json, "cache");
  StepCacheConfig config;
  if (const auto* method = std::get_if<CacheMethod>(&given)) {
    config.method = *method;
  } else {
    config = from_json(std::get<nlohmann::json>(given));
  }
  config.validate();
  return config;
}

std::string to_json(const StepCacheConfig& config) {
  nlohmann::ordered_json out;
  out["method"] = config.method_name();
  const auto write = [&](const char* key, const auto& value) { out[key] = json_value(value); };
  std::visit([&]<class Options>(const Options& options) { Options::options(options, write); }, config.method);
  if (config.on()) StepCacheConfig::options(config, write);
  return out.dump();
}

const char* cache_reason_name(CacheReason reason) {
  constexpr std::array<const char*, kNumCacheReasons> kNames = {"reused",     "too_few_steps", "disabled",     "last_step",
                                                                "first_step", "warm_up",       "no_reference", "max_skips",
                                                                "non_finite", "changed",       "conditional"};
  return name_of(reason, kNames);
}

std::int64_t CacheCounts::forwards() const { return std::accumulate(by_reason.begin(), by_reason.end(), std::int64_t{0}); }

std::int64_t CacheTotals::count(CacheReason reason) const {
  const auto i = static_cast<std::size_t>(reason);
  return experts[0].by_reason[i] + experts[1].by_reason[i];
}

}  // namespace winnow
