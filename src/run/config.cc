// AttentionConfig: names, validity, and its JSON form. docs/configuration.md lists every key.
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/options.h"
#include "core/text.h"
#include "winnow/error.h"
#include "winnow/session.h"

namespace winnow {

namespace {

template <class Options>
concept HasHeadBudgets = requires(const Options& options) {
  options.budgets;
};

bool has_head_budgets(const Method& method) {
  return std::visit([]<class Options>(const Options&) { return HasHeadBudgets<Options>; }, method);
}

// The keys beside the method's own.
template <class Config, class Visit>
void shared_options(Config& config, Visit&& visit) {
  GateOptions::options(config.gate, visit);
  TokenOptions::options(config.tokens, visit);
  if (has_head_budgets(config.method)) visit("budget", config.budget);
  visit("executor", config.executor);
  visit("profile", config.profile);
}

// The method that an object without "method" means: the only one that takes all of its keys, at least one of them its own.
// Others publish their settings so, for example {"sparsity":0.75,"n_k":4,"n_q":4}. Empty if there is none.
std::string implied_method(const nlohmann::json& object) {
  std::vector<std::string> found;
  for_each_alternative<Method>([&]<class Options>(const Options& defaults) {
    AttentionConfig config;
    config.method = defaults;
    std::set<std::string> own;
    std::set<std::string> shared;
    Options::options(defaults, [&](const char* key, const auto&) { own.insert(key); });
    shared_options(config, [&](const char* key, const auto&) { shared.insert(key); });
    bool any = false;
    bool all = true;
    for (const auto& [key, value] : object.items()) {
      any = any || own.contains(key);
      all = all && (own.contains(key) || shared.contains(key));
    }
    if (any && all) found.emplace_back(Options::kName);
  });
  return found.size() == 1 ? found[0] : "";
}

// A budget needs a method that takes one per head, and only one of the two.
void check_budget(const AttentionConfig& config) {
  if (!config.budget) return;
  config.budget->validate();
  std::visit(
      [&]<class Options>(const Options& options) {
        if constexpr (HasHeadBudgets<Options>) {
          if (!options.budgets.empty()) throw Error("config", "budget: expected this or budgets, got both");
        } else {
          throw Error("config", std::string("budget: expected a method with budgets per head, got ") + Options::kName);
        }
      },
      config.method);
}

AttentionConfig from_json(const nlohmann::json& object) {
  if (!object.is_object()) wrong("attention", "an object {\"method\": ...}", object);
  KeyReader keys(object);
  std::string name;
  keys.read("method", name);
  if (!object.contains("method")) name = implied_method(object);
  const std::optional<Method> method = method_named<Method>(name);
  if (!method)
    throw Error("config", "method: expected one of " + method_list<Method>() + ", got " + (name.empty() ? "nothing" : "\"" + name + "\""));
  AttentionConfig config;
  config.method = *method;
  const auto read = [&](const char* key, auto& value) { keys.read(key, value); };
  std::visit([&]<class Options>(Options& options) { Options::options(options, read); }, config.method);
  shared_options(config, read);
  keys.finish("method " + name);
  return config;
}

}  // namespace

void SkipSoftmax::validate() const {
  if (threshold && target_sparsity) throw Error("config", "threshold: expected this or target_sparsity, got both");
  if (threshold && !(*threshold >= 0.0F && *threshold < 1.0F)) {
    throw Error("config", "threshold: expected a number in [0,1), got " + short_number(*threshold));
  }
  if (target_sparsity && !(*target_sparsity > 0.0F && *target_sparsity < 1.0F)) {
    throw Error("config", "target_sparsity: expected a number in (0,1), got " + short_number(*target_sparsity));
  }
  if (!calibration.empty() && !target_sparsity) throw Error("config", "calibration: expected with target_sparsity, got it alone");
}

void FixedPlan::validate() const {
  if (path.empty()) throw Error("config", "path: expected a plan file or a block mask, got nothing");
  const auto check = [](const char* name, int block) {
    if (block < 0 || block > 65536) throw Error("config", std::string(name) + ": expected 0 to 65536, got " + std::to_string(block));
  };
  check("block_q", block_q);
  check("block_k", block_k);
}

void AttentionConfig::validate() const {
  gate.validate();
  tokens.validate();
  check_budget(*this);
  std::visit([](const auto& options) { options.validate(); }, method);
}

const char* AttentionConfig::method_name() const { return winnow::method_name(method); }

AttentionConfig parse_attention_config(std::string_view name_file_or_json) {
  const auto given = name_or_json<Method>(name_file_or_json, "attention");
  AttentionConfig config;
  if (const auto* method = std::get_if<Method>(&given)) {
    config.method = *method;
  } else {
    config = from_json(std::get<nlohmann::json>(given));
  }
  std::visit(
      []<class Options>(Options& options) {
        if constexpr (requires { options.complete(); }) options.complete();
      },
      config.method);
  config.validate();
  return config;
}

std::string to_json(const AttentionConfig& config) {
  nlohmann::ordered_json out;
  out["method"] = config.method_name();
  const auto write = [&]<class Value>(const char* key, const Value& value) {
    if constexpr (std::is_same_v<Value, std::optional<float>> || std::is_same_v<Value, std::optional<SignalBudget>>) {
      if (value) out[key] = json_value(*value);  // a key that need not be there: one of several that exclude each other, or off
    } else {
      out[key] = json_value(value);
    }
  };
  std::visit([&]<class Options>(const Options& options) { Options::options(options, write); }, config.method);
  shared_options(config, write);
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace winnow
