#include "steps/gate.h"

#include <cmath>
#include <string>

#include "winnow/error.h"

namespace winnow {

namespace {

void need(bool ok, const char* operation, const char* key, const char* expected, const std::string& found) {
  if (!ok) throw Error(operation, std::string(key) + ": expected " + expected + ", got " + found);
}

}  // namespace

void GateOptions::validate() const {
  need(skip_first_steps >= 0, "config", "skip_first_steps", "a number >= 0", std::to_string(skip_first_steps));
  need(skip_first_layers >= 0, "config", "skip_first_layers", "a number >= 0", std::to_string(skip_first_layers));
  need(min_seq_len >= 0, "config", "min_seq_len", "a number >= 0", std::to_string(min_seq_len));
  if (disabled_until_timestep) {
    const double t = *disabled_until_timestep;
    need(std::isfinite(t) && t >= 0.0 && t <= 1.0, "config", "disabled_until_timestep", "a number in [0,1]", std::to_string(t));
  }
}

void validate(const StepContext& context) {
  need(context.step >= 0, "steps", "step", "a number >= 0", std::to_string(context.step));
  need(context.layer >= 0, "steps", "layer", "a number >= 0", std::to_string(context.layer));
  if (context.timestep) {
    const double t = *context.timestep;
    need(std::isfinite(t) && t >= 0.0 && t <= 1.0, "steps", "timestep", "a number in [0,1]", std::to_string(t));
  }
}

DenseReason gate(const GateOptions& options, const StepContext& context, std::int64_t queries, std::int64_t keys) {
  if (context.role == AttentionRole::cross || queries != keys) return DenseReason::cross_attention;
  if (context.step < options.skip_first_steps) return DenseReason::skip_first_steps;
  if (context.layer < options.skip_first_layers) return DenseReason::skip_first_layers;
  if (keys < options.min_seq_len) return DenseReason::min_seq_len;
  if (options.disabled_until_timestep) {
    if (!context.timestep) return DenseReason::missing_timestep;
    if (*context.timestep > *options.disabled_until_timestep) return DenseReason::disabled_until_timestep;
  }
  return DenseReason::none;
}

}  // namespace winnow
