#include "report/method_list.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "core/label.h"
#include "core/text.h"
#include "report/setting_check.h"
#include "winnow/error.h"

namespace winnow::report {

namespace {

using Json = nlohmann::json;

constexpr const char* kOperation = "compare";

[[noreturn]] void wrong(const std::string& where, const std::string& expected, const Json& found) {
  throw Error(kOperation, where + ": expected " + expected + ", got " + found.dump(-1, ' ', true).substr(0, 80));
}

// Throws Error unless `object` is one and has no other keys than these.
void check_keys(const Json& object, const std::string& where, const std::vector<std::string>& known) {
  if (!object.is_object()) wrong(where, "an object", object);
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    std::string names;
    for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
    throw Error(kOperation, where + ": unknown key \"" + key + "\": expected " + names);
  }
}

std::vector<double> densities(const Json& json, const std::string& where) {
  const std::string expected = "a list of densities in (0,1]";
  if (!json.is_array()) wrong(where, expected, json);
  std::vector<double> list;
  for (const Json& item : json) {
    if (!item.is_number() || !(item.get<double>() > 0.0 && item.get<double>() <= 1.0)) wrong(where, expected, json);
    list.push_back(item.get<double>());
  }
  return list;
}

Knob knob(const Json& object, const std::string& where) {
  if (!object.at("knob").is_string()) wrong(where + ": knob", "the name of an option", object.at("knob"));
  const Json range = object.value("range", Json());
  if (!range.is_array() || range.size() != 2 || !range[0].is_number() || !range[1].is_number() || range[0] == range[1]) {
    wrong(where + ": range", "two numbers that differ, [sparse, dense]", range);
  }
  Knob knob;
  knob.key = object.at("knob").get<std::string>();
  knob.sparse = range[0].get<double>();
  knob.dense = range[1].get<double>();
  knob.is_integer = range[0].is_number_integer() && range[1].is_number_integer();
  const Json log = object.value("log", Json(false));
  if (!log.is_boolean()) wrong(where + ": log", "true or false", log);
  knob.is_logarithmic = log.get<bool>();
  if (knob.is_logarithmic && !(knob.sparse > 0.0 && knob.dense > 0.0)) wrong(where + ": range", "numbers above 0 with log", range);
  return knob;
}

MethodEntry method(const Json& object, const std::string& where) {
  check_keys(object, where, {"label", "attention", "knob", "range", "log", "densities", "video_densities"});
  if (!object.contains("attention") || !object.at("attention").is_object()) {
    wrong(where + ": attention", "an attention setting", object.value("attention", Json()));
  }
  MethodEntry entry;
  entry.attention = object.at("attention").dump();
  const Json label = object.value("label", object.at("attention").value("method", Json()));
  if (!label.is_string()) wrong(where + ": label", "a name", label);
  entry.label = label.get<std::string>();
  if (object.contains("knob")) entry.knob = knob(object, where + ": " + entry.label);
  if (object.contains("densities")) entry.densities = densities(object.at("densities"), where + ": densities");
  if (object.contains("video_densities")) entry.video_densities = densities(object.at("video_densities"), where + ": video_densities");
  return entry;
}

// A setting measured twice would be two rows of one name.
void check_differ(std::vector<double> densities, const std::string& where) {
  std::sort(densities.begin(), densities.end());
  const auto twice = std::adjacent_find(densities.begin(), densities.end());
  if (twice != densities.end()) throw Error(kOperation, where + ": expected different ones, got " + short_number(*twice) + " twice");
}

}  // namespace

AttentionConfig MethodEntry::at(double position) const {
  if (!knob) return parse_attention_config(attention);
  double value = knob->sparse + position * (knob->dense - knob->sparse);
  if (knob->is_logarithmic) value = knob->sparse * std::pow(knob->dense / knob->sparse, position);
  if (position >= 1.0) value = knob->dense;  // without rounding
  Json json = parse_json(attention, label, kOperation);
  json[knob->key] = knob->is_integer ? Json(std::llround(value)) : Json(value);
  return parse_attention_config(json.dump());
}

MethodList read_method_list(const std::string& path) {
  const Json json = parse_json(read_text_file(path, kOperation, std::size_t{1} << 20U), path, kOperation);
  check_keys(json, path, {"densities", "video_densities", "methods"});
  MethodList list;
  list.densities = densities(json.value("densities", Json::array()), path + ": densities");
  list.video_densities = densities(json.value("video_densities", Json::array()), path + ": video_densities");
  const Json methods = json.value("methods", Json());
  if (!methods.is_array() || methods.empty()) wrong(path + ": methods", "a list of methods", methods);
  for (std::size_t i = 0; i < methods.size(); ++i) {
    list.methods.push_back(method(methods[i], path + ": methods[" + std::to_string(i) + "]"));
  }
  return list;
}

void check_methods(const MethodList& list) {
  check_differ(list.densities, "densities");
  check_differ(list.video_densities, "video_densities");
  std::map<std::string, std::string> labels;  // of settings
  for (const MethodEntry& entry : list.methods) {
    const auto check = [&](const std::string& what, const std::string& value) {
      const auto [found, is_new] = labels.try_emplace(what + value, entry.label);
      if (!is_new) throw Error(kOperation, "methods: " + found->second + " and " + entry.label + " have the same " + what + " " + value);
    };
    check_label(entry.label, "methods", kOperation);
    check_differ(entry.densities.value_or(std::vector<double>{}), entry.label + ": densities");
    check_differ(entry.video_densities.value_or(std::vector<double>{}), entry.label + ": video_densities");
    check("label", entry.label);
    const AttentionConfig sparse = with_label(kOperation, "methods: " + entry.label, [&] {
      entry.at(1.0);
      return entry.at(0.0);
    });
    if (entry.label == "floor" || (entry.label == "dense" && !std::holds_alternative<Dense>(sparse.method))) {
      throw Error(kOperation, "methods: label: expected another name, since dense and floor are rows of every report, got " + entry.label);
    }
    check("setting", to_json(sparse));
    if (entry.knob && entry.densities.value_or(list.densities).empty())
      throw Error(kOperation, "densities: expected some for the knob of " + entry.label + ", got none");
  }
}

}  // namespace winnow::report
