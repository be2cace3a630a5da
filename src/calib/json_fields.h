// Strict reading of the fields of one JSON object: typed, in range, nothing unknown.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/json.h"

namespace winnow {

class JsonFields {
 public:
  // `name` is where the object is from, for messages: "calibration.json: experts.high". Throws Error unless it is an object.
  JsonFields(const nlohmann::json& object, std::string operation, std::string name);

  bool has(const char* key) const { return object_.contains(key); }
  // Each throws Error naming the field if it is missing, of another type or out of [low, high].
  double number(const char* key, double low, double high);
  std::vector<double> numbers(const char* key, double low, double high);  // a list, maybe empty
  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high);
  std::string text(const char* key);
  const nlohmann::json& value(const char* key);
  JsonFields object(const char* key);
  // "format" is this, and "version" 1.
  void check_format(const std::string& format);
  // Throws Error at a field that was not asked for.
  void finish() const;
  [[noreturn]] void fail(const std::string& key, const std::string& expected, const nlohmann::json& found) const;
  std::vector<std::string> keys() const;

 private:
  const nlohmann::json& object_;
  std::string operation_;
  std::string name_;
  std::set<std::string> known_;
};

}  // namespace winnow
