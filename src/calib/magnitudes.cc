#include "calib/magnitudes.h"

#include <array>
#include <utility>
#include <vector>

#include "calib/json_fields.h"
#include "core/json.h"
#include "core/partial_file.h"

namespace winnow {

namespace {

constexpr const char* kOperation = "magnitudes";
constexpr const char* kFormat = "winnow.magnitude_calibration";

// [(name, ratios)] of both experts.
template <class Ratios>
auto experts_of(Ratios& ratios) {
  return std::array{std::pair("high", &ratios.high), std::pair("low", &ratios.low)};
}

MagnitudeRatios read_expert(JsonFields fields) {
  constexpr double kLargest = 1e6;  // more, or less than its inverse, is not a ratio of neighbouring steps
  const auto numbers = [&](const char* key) { return fields.numbers(key, 1.0 / kLargest, kLargest); };
  MagnitudeRatios ratios = {numbers("conditional"), numbers("unconditional")};
  if (ratios.conditional.empty()) fields.fail("conditional", "at least one number", fields.value("conditional"));
  fields.finish();
  return ratios;
}

}  // namespace

void MagnitudeCalibration::save(const std::string& path) const {
  nlohmann::ordered_json json = {{"format", kFormat}, {"version", 1}, {"model", model}, {"tokens", tokens}};
  json["executor"] = {{"name", executor}};
  json["experts"] = nlohmann::ordered_json::object();
  for (const auto& [name, expert] : experts_of(ratios)) {
    if (expert->conditional.empty()) continue;
    json["experts"][name] = {{"conditional", expert->conditional}, {"unconditional", expert->unconditional}};
  }
  write_text_file(kOperation, path, json.dump(1) + "\n");
}

MagnitudeCalibration MagnitudeCalibration::load(const std::string& path) {
  const nlohmann::json document = parse_json(read_text_file(path, kOperation), path, kOperation);
  JsonFields fields(document, kOperation, path);
  fields.check_format(kFormat);
  MagnitudeCalibration calibration;
  calibration.model = fields.text("model");
  calibration.tokens = fields.integer("tokens", 1, std::int64_t{1} << 40U);
  JsonFields executor = fields.object("executor");
  calibration.executor = executor.text("name");
  executor.finish();
  JsonFields experts = fields.object("experts");
  for (const auto& [name, expert] : experts_of(calibration.ratios)) {
    if (experts.has(name)) *expert = read_expert(experts.object(name));
  }
  experts.finish();
  fields.finish();
  return calibration;
}

}  // namespace winnow
