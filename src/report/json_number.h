// Numbers in the JSON of reports.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

namespace winnow::report {

// JSON has no infinity or NaN, and reports no nulls: what is unset or not finite is left out.
inline void put(nlohmann::ordered_json& json, const char* key, std::optional<double> value) {
  if (value && std::isfinite(*value)) json[key] = *value;
}

}  // namespace winnow::report
