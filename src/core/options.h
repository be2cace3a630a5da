// Options to and from JSON. A type with options has
//   static void options(self, visit)   which calls visit(key, value) for every option, in order
// and a variant of such types, each with a kName, is a choice of methods.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/json.h"
#include "winnow/error.h"
#include "winnow/step_cache.h"
#include "winnow/token_layout.h"

namespace winnow {

// Calls f with a default-constructed value of every alternative, in order.
template <class Variant, class F>
void for_each_alternative(F f) {
  [&]<std::size_t... I>(std::index_sequence<I...>) { (f(std::variant_alternative_t<I, Variant>{}), ...); }
  (std::make_index_sequence<std::variant_size_v<Variant>>{});
}

template <class Variant>
std::string method_list() {
  std::string text;
  for_each_alternative<Variant>([&]<class Options>(const Options&) { text += (text.empty() ? "" : ", ") + std::string(Options::kName); });
  return text;
}

template <class Variant>
const char* method_name(const Variant& method) {
  return std::visit([]<class Options>(const Options&) { return Options::kName; }, method);
}

template <class Variant>
std::optional<Variant> method_named(std::string_view name) {
  std::optional<Variant> found;
  for_each_alternative<Variant>([&]<class Options>(const Options& defaults) {
    if (name == Options::kName) found = defaults;
  });
  return found;
}

[[noreturn]] inline void wrong(const std::string& key, const std::string& expected, const nlohmann::json& found) {
  constexpr std::size_t kShown = 60;
  std::string text = found.dump(-1, ' ', true);
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  throw Error("config", key + ": expected " + expected + ", got " + text);
}

// Reads typed values out of one JSON object; finish() refuses keys that nobody asked for.
class KeyReader {
 public:
  // `prefix` stands before the keys in messages: "experts.high.".
  explicit KeyReader(const nlohmann::json& object, std::string prefix = {}) : object_(object), prefix_(std::move(prefix)) {}

  void read(const char* key, float& value) {
    const nlohmann::json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_number()) wrong(prefix_ + key, "a number", *found);
    const auto wide = found->get<double>();
    if (!(std::abs(wide) <= static_cast<double>(std::numeric_limits<float>::max()))) wrong(prefix_ + key, "a finite number", *found);
    value = static_cast<float>(wide);
  }
  void read(const char* key, std::optional<double>& value) {
    const nlohmann::json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_number() && !found->is_null()) wrong(prefix_ + key, "a number or null", *found);
    value = found->is_null() ? std::nullopt : std::optional(found->get<double>());
  }
  void read(const char* key, std::vector<int>& values) {
    const nlohmann::json* found = find(key);
    if (found == nullptr) return;
    const std::string expected = "a list of integers from 0 to " + std::to_string(std::numeric_limits<int>::max());
    if (!found->is_array()) wrong(prefix_ + key, expected, *found);
    values.clear();
    for (const nlohmann::json& item : *found) {
      if (!item.is_number_unsigned() || item.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<int>::max())) {
        wrong(prefix_ + key, expected, *found);
      }
      values.push_back(item.get<int>());
    }
  }
  void read(const char* key, std::vector<double>& values) {
    const nlohmann::json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_array()) wrong(prefix_ + key, "a list of numbers", *found);
    values.clear();
    for (const nlohmann::json& item : *found) {
      if (!item.is_number()) wrong(prefix_ + key, "a list of numbers", *found);
      values.push_back(item.get<double>());
    }
  }
  // A key that stays unset if it is not named.
  template <class T>
  void read(const char* key, std::optional<T>& value) {
    if (!object_.contains(key)) return known_.emplace_back(key), void();
    value.emplace();
    read(key, *value);
  }
  // An object with options of its own.
  template <class Options>
  requires requires(Options& options) {
    Options::options(options, [](const char*, auto&) {});
  }
  void read(const char* key, Options& options) {
    const nlohmann::json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_object()) wrong(prefix_ + key, "an object", *found);
    KeyReader inner(*found, prefix_ + key + ".");
    Options::options(options, [&](const char* name, auto& value) { inner.read(name, value); });
    inner.finish(prefix_ + key);
  }
  template <class Integer>
  requires std::is_integral_v<Integer>
  void read(const char* key, Integer& value) {
    const nlohmann::json* found = find(key);
    if (found == nullptr) return;
    const std::string expected = "an integer from 0 to " + std::to_string(std::numeric_limits<Integer>::max());
    if (!found->is_number_unsigned()) wrong(prefix_ + key, expected, *found);  // a parser's unsigned is any integer >= 0
    const auto wide = found->get<std::uint64_t>();
    if (wide > static_cast<std::uint64_t>(std::numeric_limits<Integer>::max())) wrong(prefix_ + key, expected, *found);
    value = static_cast<Integer>(wide);
  }
  void read(const char* key, TokenOrder& value) { read_name(key, kTokenOrderNames, value); }
  void read(const char* key, UnknownPositions& value) { read_name(key, kUnknownPositionsNames, value); }
  void read(const char* key, TimeSignal& value) { read_name(key, kTimeSignalNames, value); }
  template <std::size_t N>
  void read(const char* key, std::array<int, N>& values) {
    if (!object_.contains(key)) return known_.emplace_back(key), void();
    std::vector<int> list;
    read(key, list);
    if (list.size() != N) wrong(prefix_ + key, std::to_string(N) + " integers", object_.at(key));
    std::copy(list.begin(), list.end(), values.begin());
  }
  void read(const char* key, bool& value) {
    const nlohmann::json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_boolean()) wrong(prefix_ + key, "true or false", *found);
    value = found->get<bool>();
  }
  void read(const char* key, std::string& value) {
    const nlohmann::json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_string()) wrong(prefix_ + key, "a string", *found);
    value = found->get<std::string>();
  }

  const nlohmann::json* find(const char* key) {
    known_.emplace_back(key);
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }

  // `owner` takes the keys: "method mean_pool".
  void finish(const std::string& owner) const {
    std::string names;
    for (const std::string& key : known_) names += (names.empty() ? "" : ", ") + key;
    for (const auto& [key, value] : object_.items()) {
      if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
        throw Error("config", "unknown key \"" + prefix_ + key + "\": " + owner + " takes " + names);
      }
    }
  }

 private:
  // An enumerator, whose number is the place of its name.
  template <class Enum, std::size_t N>
  void read_name(const char* key, const std::array<const char*, N>& names, Enum& value) {
    if (!object_.contains(key)) return known_.emplace_back(key), void();
    std::string name;
    read(key, name);
    std::string list;
    for (std::size_t i = 0; i < N; ++i) {
      if (name == names[i]) return void(value = static_cast<Enum>(i));
      list += (i == 0 ? "" : ", ") + std::string(names[i]);
    }
    wrong(prefix_ + key, "one of " + list, object_.at(key));
  }

  const nlohmann::json& object_;
  std::string prefix_;
  std::vector<std::string> known_;
};

// The shortest decimal that is this float, as the double that prints so: 0.9 and not 0.899999976.
inline double shortest(float x) {
  char buffer[32];
  const auto written = std::to_chars(buffer, buffer + sizeof buffer, x);
  double value = 0.0;
  std::from_chars(buffer, written.ptr, value);
  return value;
}

// The name of an enumerator, whose number is the place of its name. Throws Error if there is none.
template <class Enum, std::size_t N>
const char* name_of(Enum value, const std::array<const char*, N>& names) {
  const auto place = static_cast<std::size_t>(value);
  if (place >= N) {
    throw Error("config", std::string("expected one of the ") + std::to_string(N) + " enumerators from " + names.front() + " to " +
                              names.back() + ", got the number " + std::to_string(static_cast<long long>(value)));
  }
  return names[place];
}

// A configuration value as JSON.
inline nlohmann::ordered_json json_value(TokenOrder value) { return name_of(value, kTokenOrderNames); }
inline nlohmann::ordered_json json_value(UnknownPositions value) { return name_of(value, kUnknownPositionsNames); }
inline nlohmann::ordered_json json_value(TimeSignal value) { return name_of(value, kTimeSignalNames); }
inline nlohmann::ordered_json json_value(float value) { return shortest(value); }
inline nlohmann::ordered_json json_value(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}
template <class Value>
nlohmann::ordered_json json_value(const Value& value) {
  return value;
}
// Only what is set.
template <class Options>
requires requires(const Options& options) {
  Options::options(options, [](const char*, const auto&) {});
}
nlohmann::ordered_json json_value(const Options& options) {
  auto out = nlohmann::ordered_json::object();
  Options::options(options, [&]<class Value>(const char* key, const Value& value) {
    if constexpr (requires { value.has_value(); }) {
      if (value) out[key] = json_value(*value);
    } else {
      auto inner = json_value(value);
      if (!inner.empty()) out[key] = std::move(inner);
    }
  });
  return out;
}

// What `text` names: a method as it is, or the object in JSON text or in a JSON file. `what` says in messages what it is for.
template <class Variant>
std::variant<Variant, nlohmann::json> name_or_json(std::string_view text, const std::string& what) {
  if (const std::optional<Variant> method = method_named<Variant>(text)) return *method;
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text[first] == '{') return parse_json(text, what, "config");
  const std::string path(text);
  std::string contents;
  try {
    contents = read_text_file(path, "config", std::size_t{1} << 20U);
  } catch (const Error& error) {
    throw Error("config", what + ": expected one of " + method_list<Variant>() + ", a JSON file or JSON text; " +
                              (path.empty() ? "got nothing" : error.message()));
  }
  return parse_json(contents, path, "config");
}

}  // namespace winnow
