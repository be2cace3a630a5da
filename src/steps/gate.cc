#include "steps/gate.h"

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "core/text.h"
#include "winnow/error.h"

namespace winnow {

namespace {

[[noreturn]] void refuse(const char* operation, const std::string& key, const std::string& expected, const std::string& found) {
  throw Error(operation, key + ": expected " + expected + ", got " + found);
}

bool is_share(double x) { return x >= 0.0 && x <= 1.0; }

void check_value(const std::string& key, const float& fraction) {
  if (!is_share(double{fraction})) refuse("config", key, "a number in [0,1]", short_number(fraction));
}
void check_value(const std::string& key, const std::int64_t& value) {
  if (value < 0) refuse("config", key, "a number >= 0", std::to_string(value));
}
void check_value(const std::string& key, const int& value) { check_value(key, std::int64_t{value}); }
void check_value(const std::string& key, const std::vector<int>& layers) {
  for (const int layer : layers) {
    if (layer < 0) refuse("config", key, "layers >= 0", std::to_string(layer));
  }
}
void check_value(const std::string& key, const std::optional<double>& timestep) {
  if (timestep && !is_share(*timestep)) refuse("config", key, "a number in [0,1]", short_number(*timestep));
}
template <class T>
void check_value(const std::string& key, const std::optional<T>& value) {  // of an override
  if (value) check_value(key, *value);
}

// Calls visit(key, value) for every option, of overrides with their place in front: "experts.high.min_seq_len".
template <class Options, class Visit>
void for_each_option(const Options& options, const Visit& visit, const std::string& place = "") {
  Options::options(options, [&]<class Value>(const char* key, const Value& value) {
    if constexpr (requires { Value::options(value, [](const char*, const auto&) {}); })
      for_each_option(value, visit, place + key + ".");
    else
      visit(place + key, value);
  });
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
  for_each_option(*this, [](const std::string& key, const auto& value) { check_value(key, value); });
}

void check_fits_model(const GateOptions& options, int num_layers, int num_experts) {
  if (num_experts < 2 && options.experts.low != GateOverride{}) refuse("config", "experts.low", "a model with two experts", "one expert");
  const auto check_layers = [&](const std::string& key, const std::vector<int>& layers) {
    for (const int layer : layers) {
      if (layer >= num_layers) refuse("config", key, "layers from 0 to " + std::to_string(num_layers - 1), std::to_string(layer));
    }
  };
  for_each_option(options, [&]<class Value>(const std::string& key, const Value& value) {
    if constexpr (std::is_same_v<Value, std::vector<int>>) check_layers(key, value);
    if constexpr (std::is_same_v<Value, std::optional<std::vector<int>>>) check_layers(key, value.value_or(std::vector<int>{}));
  });
}

void validate(const StepContext& context) {  // for every call, so that nothing is allocated unless it is refused
  if (context.step < 0) refuse("steps", "step", "a number >= 0", std::to_string(context.step));
  const auto in_range = [](const char* key, int value, int low, int high) {
    if (value < low || value > high) refuse("steps", key, std::to_string(low) + " to " + std::to_string(high), std::to_string(value));
  };
  constexpr int kMostLayers = 1 << 16;  // far more than any model has, and what is kept per layer still fits into memory
  in_range("expert", context.expert, 0, 1);
  in_range("layer", context.layer, 0, kMostLayers - 1);
  in_range("num_layers", context.num_layers, 1, kMostLayers);
  if (context.num_steps < 1) refuse("steps", "num_steps", "a number >= 1", std::to_string(context.num_steps));
  if (context.timestep && !is_share(*context.timestep)) refuse("steps", "timestep", "a number in [0,1]", short_number(*context.timestep));
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
