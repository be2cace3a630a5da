#include "calib/json_fields.h"

#include "core/text.h"
#include "winnow/error.h"

namespace winnow {

namespace {

bool is_number_in(const nlohmann::json& x, double low, double high) {
  return x.is_number() && x.get<double>() >= low && x.get<double>() <= high;
}

}  // namespace

JsonFields::JsonFields(const nlohmann::json& object, std::string operation, std::string name)
    : object_(object), operation_(std::move(operation)), name_(std::move(name)) {
  if (!object.is_object()) throw Error(operation_, name_ + ": expected an object, got " + object.dump(-1, ' ', true).substr(0, 60));
}

void JsonFields::fail(const std::string& key, const std::string& expected, const nlohmann::json& found) const {
  throw Error(operation_, name_ + ": " + key + ": expected " + expected + ", got " + found.dump(-1, ' ', true).substr(0, 60));
}

const nlohmann::json& JsonFields::value(const char* key) {
  known_.insert(key);
  const auto found = object_.find(key);
  if (found == object_.end()) throw Error(operation_, name_ + ": expected the key \"" + key + "\"");
  return *found;
}

double JsonFields::number(const char* key, double low, double high) {
  const nlohmann::json& found = value(key);
  if (!is_number_in(found, low, high)) fail(key, "a number from " + short_number(low) + " to " + short_number(high), found);
  return found.get<double>();
}

std::vector<double> JsonFields::numbers(const char* key, double low, double high) {
  const nlohmann::json& found = value(key);
  if (!found.is_array()) fail(key, "a list of numbers", found);
  for (const nlohmann::json& item : found) {
    if (!is_number_in(item, low, high)) fail(key, "numbers from " + short_number(low) + " to " + short_number(high), item);
  }
  return found.get<std::vector<double>>();
}

std::int64_t JsonFields::integer(const char* key, std::int64_t low, std::int64_t high) {
  const nlohmann::json& found = value(key);
  // Anything beyond 2^62 is refused before it can wrap around.
  if (!found.is_number_integer() || found.get<double>() > 4e18 || found.get<std::int64_t>() < low || found.get<std::int64_t>() > high) {
    fail(key, "an integer from " + std::to_string(low) + " to " + std::to_string(high), found);
  }
  return found.get<std::int64_t>();
}

std::string JsonFields::text(const char* key) {
  const nlohmann::json& found = value(key);
  if (!found.is_string()) fail(key, "a string", found);
  return found.get<std::string>();
}

JsonFields JsonFields::object(const char* key) { return {value(key), operation_, name_ + ": " + key}; }

std::vector<std::string> JsonFields::keys() const {
  std::vector<std::string> names;
  for (const auto& [key, value] : object_.items()) names.push_back(key);
  return names;
}

void JsonFields::check_format(const std::string& format) {
  if (text("format") != format) fail("format", format, value("format"));
  integer("version", 1, 1);
}

void JsonFields::finish() const {
  for (const std::string& key : keys()) {
    if (!known_.contains(key)) throw Error(operation_, name_ + ": unknown key \"" + key + "\"");
  }
}

}  // namespace winnow
