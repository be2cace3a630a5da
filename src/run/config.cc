// AttentionConfig: names, validity, and its JSON form. docs/configuration.md lists every key.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "winnow/error.h"
#include "winnow/session.h"

namespace winnow {

namespace {

constexpr const char* kMethods[] = {"dense", "mean_pool", "oracle", "skip_softmax", "plan"};  // in the order of Method
static_assert(std::variant_size_v<Method> == std::size(kMethods));

std::string method_list() {
  std::string text;
  for (const char* name : kMethods) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

std::optional<Method> method_named(std::string_view name) {
  static const Method kDefaults[] = {Dense{}, MeanPool{}, Oracle{}, SkipSoftmax{}, FixedPlan{}};
  for (std::size_t i = 0; i < std::size(kMethods); ++i) {
    if (name == kMethods[i]) return kDefaults[i];
  }
  return std::nullopt;
}

[[noreturn]] void wrong(const std::string& key, const std::string& expected, const nlohmann::json& found) {
  constexpr std::size_t kShown = 60;
  std::string text = found.dump(-1, ' ', true);
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  throw Error("config", key + ": expected " + expected + ", got " + text);
}

// Reads typed values out of one JSON object; finish() refuses keys that nobody asked for.
class KeyReader {
 public:
  explicit KeyReader(const nlohmann::json& object) : object_(object) {}

  void read(const char* key, float& value) {
    const nlohmann::json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_number()) wrong(key, "a number", *found);
    const auto wide = found->get<double>();
    if (!(std::abs(wide) <= static_cast<double>(std::numeric_limits<float>::max()))) wrong(key, "a finite number", *found);
    value = static_cast<float>(wide);
  }
  void read(const char* key, std::optional<double>& value) {
    const nlohmann::json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_number() && !found->is_null()) wrong(key, "a number or null", *found);
    value = found->is_null() ? std::nullopt : std::optional(found->get<double>());
  }
  template <class Integer>
  requires std::is_integral_v<Integer>
  void read(const char* key, Integer& value) {
    const nlohmann::json* found = find(key);
    if (found == nullptr) return;
    const std::string expected = "an integer from 0 to " + std::to_string(std::numeric_limits<Integer>::max());
    if (!found->is_number_unsigned()) wrong(key, expected, *found);  // a parser's unsigned is any integer >= 0
    const auto wide = found->get<std::uint64_t>();
    if (wide > static_cast<std::uint64_t>(std::numeric_limits<Integer>::max())) wrong(key, expected, *found);
    value = static_cast<Integer>(wide);
  }
  void read(const char* key, bool& value) {
    const nlohmann::json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_boolean()) wrong(key, "true or false", *found);
    value = found->get<bool>();
  }
  void read(const char* key, std::string& value) {
    const nlohmann::json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_string()) wrong(key, "a string", *found);
    value = found->get<std::string>();
  }

  const nlohmann::json* find(const char* key) {
    known_.emplace_back(key);
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }

  void finish(const std::string& method) const {
    std::string names;
    for (const std::string& key : known_) names += (names.empty() ? "" : ", ") + key;
    for (const auto& [key, value] : object_.items()) {
      if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
        throw Error("config", "unknown key \"" + key + "\": method " + method + " takes " + names);
      }
    }
  }

 private:
  const nlohmann::json& object_;
  std::vector<std::string> known_;
};

void read_options(KeyReader&, Dense&) {}
void read_options(KeyReader& keys, MeanPool& options) {
  keys.read("cdf", options.cdf);
  keys.read("neighbors", options.neighbors);
  keys.read("means", options.means);
}
void read_options(KeyReader& keys, Oracle& options) {
  keys.read("cdf", options.cdf);
  keys.read("density", options.density);
  keys.read("means", options.means);
}
void read_options(KeyReader& keys, SkipSoftmax& options) {
  keys.read("threshold", options.threshold);
  if (keys.find("target_sparsity") != nullptr) {
    throw Error("config", "target_sparsity: needs a skip-softmax calibration of this model, and there is none; give threshold instead");
  }
}
void read_options(KeyReader& keys, FixedPlan& options) { keys.read("path", options.path); }

AttentionConfig from_json(const nlohmann::json& object) {
  if (!object.is_object()) wrong("attention", "an object {\"method\": ...}", object);
  KeyReader keys(object);
  std::string name;
  keys.read("method", name);
  const std::optional<Method> method = method_named(name);
  if (!method)
    throw Error("config", "method: expected one of " + method_list() + ", got " + (name.empty() ? "nothing" : "\"" + name + "\""));
  AttentionConfig config;
  config.method = *method;
  std::visit([&](auto& options) { read_options(keys, options); }, config.method);
  keys.read("skip_first_steps", config.gate.skip_first_steps);
  keys.read("skip_first_layers", config.gate.skip_first_layers);
  keys.read("min_seq_len", config.gate.min_seq_len);
  keys.read("disabled_until_timestep", config.gate.disabled_until_timestep);
  keys.read("executor", config.executor);
  keys.finish(name);
  return config;
}

// The shortest decimal that is this float, as the double that prints so: 0.9 and not 0.899999976.
double shortest(float x) {
  char buffer[32];
  const auto written = std::to_chars(buffer, buffer + sizeof buffer, x);
  double value = 0.0;
  std::from_chars(buffer, written.ptr, value);
  return value;
}

void write_options(nlohmann::ordered_json&, const Dense&) {}
void write_options(nlohmann::ordered_json& out, const MeanPool& options) {
  out["cdf"] = shortest(options.cdf);
  out["neighbors"] = options.neighbors;
  out["means"] = options.means;
}
void write_options(nlohmann::ordered_json& out, const Oracle& options) {
  out["cdf"] = shortest(options.cdf);
  out["density"] = shortest(options.density);
  out["means"] = options.means;
}
void write_options(nlohmann::ordered_json& out, const SkipSoftmax& options) { out["threshold"] = shortest(options.threshold); }
void write_options(nlohmann::ordered_json& out, const FixedPlan& options) { out["path"] = options.path; }

}  // namespace

void SkipSoftmax::validate() const {
  if (!(threshold >= 0.0F && threshold < 1.0F)) {
    throw Error("config", "threshold: expected a number in [0,1), got " + std::to_string(threshold));
  }
}

void FixedPlan::validate() const {
  if (path.empty()) throw Error("config", "path: expected a plan file, got nothing");
}

void AttentionConfig::validate() const {
  gate.validate();
  std::visit([](const auto& options) { options.validate(); }, method);
}

const char* AttentionConfig::method_name() const { return kMethods[method.index()]; }

AttentionConfig parse_attention_config(std::string_view name_file_or_json) {
  const std::string_view text = name_file_or_json;
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  AttentionConfig config;
  if (const std::optional<Method> method = method_named(text)) {
    config.method = *method;
  } else if (first != std::string_view::npos && text[first] == '{') {
    config = from_json(parse_json(text, "attention", "config"));
  } else {
    const std::string path(text);
    std::string contents;
    try {
      contents = read_text_file(path, "config", std::size_t{1} << 20U);
    } catch (const Error& error) {
      throw Error("config", "attention: expected one of " + method_list() + ", a JSON file or JSON text; " +
                                (path.empty() ? "got nothing" : std::string(error.what()).substr(sizeof "[config] " - 1)));
    }
    config = from_json(parse_json(contents, path, "config"));
  }
  config.validate();
  return config;
}

std::string to_json(const AttentionConfig& config) {
  nlohmann::ordered_json out;
  out["method"] = config.method_name();
  std::visit([&](const auto& options) { write_options(out, options); }, config.method);
  out["skip_first_steps"] = config.gate.skip_first_steps;
  out["skip_first_layers"] = config.gate.skip_first_layers;
  out["min_seq_len"] = config.gate.min_seq_len;
  out["disabled_until_timestep"] = nullptr;
  if (config.gate.disabled_until_timestep) out["disabled_until_timestep"] = *config.gate.disabled_until_timestep;
  out["executor"] = config.executor;
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace winnow
