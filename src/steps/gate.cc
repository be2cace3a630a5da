#include "steps/gate.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "winnow/error.h"

namespace winnow {

namespace {

void need(bool ok, const char* operation, const std::string& key, const char* expected, const std::string& found) {
  if (!ok) throw Error(operation, key + ": expected " + expected + ", got " + found);
}

void check_value(const std::string& key, const float& fraction) {
  need(fraction >= 0.0F && fraction <= 1.0F, "config", key, "a number in [0,1]", std::to_string(fraction));
}
void check_value(const std::string& key, const std::int64_t& value) {
  need(value >= 0, "config", key, "a number >= 0", std::to_string(value));
}
void check_value(const std::string& key, const int& value) { check_value(key, std::int64_t{value}); }
void check_value(const std::string& key, const std::vector<int>& layers) {
  for (const int layer : layers) need(layer >= 0, "config", key, "layers >= 0", std::to_string(layer));
}
void check_value(const std::string& key, const std::optional<double>& timestep) {
  if (!timestep) return;
  need(*timestep >= 0.0 && *timestep <= 1.0, "config", key, "a number in [0,1]", std::to_string(*timestep));
}
template <class T>
void check_value(const std::string& key, const std::optional<T>& value) {  // of an override
  if (value) check_value(key, *value);
}
template <class Overrides>
requires requires(const Overrides& o) {
  Overrides::options(o, [](const char*, const auto&) {});
}
void check_value(const std::string& key, const Overrides& overrides) {
  Overrides::options(overrides, [&](const char* name, const auto& value) { check_value(key + "." + name, value); });
}

// A key's value for this call.
template <class T>
const T& value_of(const GateOptions& options, const StepContext& context, T GateOptions::*common, std::optional<T> GateOverride::*own) {
  const GateOverride& branch = context.branch == Branch::conditional ? options.branches.conditional : options.branches.unconditional;
  if (const auto& value = branch.*own) return *value;
  const GateOverride& expert = context.expert == 0 ? options.experts.high : options.experts.low;
  if (const auto& value = expert.*own) return *value;
  return options.*common;
}

}  // namespace

void GateOptions::validate() const {
  options(*this, [](const char* key, const auto& value) { check_value(key, value); });
}

void validate(const StepContext& context) {
  need(context.step >= 0, "steps", "step", "a number >= 0", std::to_string(context.step));
  need(context.layer >= 0, "steps", "layer", "a number >= 0", std::to_string(context.layer));
  if (context.timestep) {
    const double t = *context.timestep;
    need(std::isfinite(t) && t >= 0.0 && t <= 1.0, "steps", "timestep", "a number in [0,1]", std::to_string(t));
  }
}

std::int64_t min_seq_len(const GateOptions& options, const StepContext& context) {
  return value_of(options, context, &GateOptions::min_seq_len, &GateOverride::min_seq_len);
}

DenseReason gate(const GateOptions& options, const StepContext& context, std::int64_t queries, std::int64_t keys) {
  const auto value = [&](auto common, auto own) -> const auto& { return value_of(options, context, common, own); };
  if (context.role == AttentionRole::cross || queries != keys) return DenseReason::cross_attention;
  if (context.step < value(&GateOptions::skip_first_steps, &GateOverride::skip_first_steps)) return DenseReason::skip_first_steps;
  // In f32 and rounded there, so that 0.1 of 30 steps are 3 and not ceil(3.0000000447).
  const float fraction = value(&GateOptions::skip_first_fraction, &GateOverride::skip_first_fraction);
  if (static_cast<float>(context.step) < fraction * static_cast<float>(context.num_steps)) return DenseReason::skip_first_fraction;
  if (context.layer < value(&GateOptions::skip_first_layers, &GateOverride::skip_first_layers)) return DenseReason::skip_first_layers;
  const std::vector<int>& layers = value(&GateOptions::dense_layers, &GateOverride::dense_layers);
  if (std::find(layers.begin(), layers.end(), context.layer) != layers.end()) return DenseReason::dense_layers;
  if (keys < min_seq_len(options, context)) return DenseReason::min_seq_len;
  if (const auto& limit = value(&GateOptions::disabled_until_timestep, &GateOverride::disabled_until_timestep)) {
    if (!context.timestep) return DenseReason::missing_timestep;
    if (*context.timestep > *limit) return DenseReason::disabled_until_timestep;
  }
  return DenseReason::none;
}

}  // namespace winnow
