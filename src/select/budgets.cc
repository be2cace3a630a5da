#include "select/budgets.h"

#include "core/json.h"
#include "winnow/error.h"

namespace winnow {

namespace {

std::vector<float> read_heads(const nlohmann::json& heads, const std::string& name) {
  std::vector<float> shares;
  for (const nlohmann::json& head : heads) {
    const double share = head.is_number() ? head.get<double>() : 0.0;
    if (!(share > 0.0 && share <= 1.0)) throw Error("budgets", name + ": keep: expected numbers in (0,1], got " + head.dump());
    shares.push_back(static_cast<float>(share));
  }
  return shares;
}

}  // namespace

const std::vector<float>& HeadBudgets::of_layer(std::int64_t layer, std::int64_t H) const {
  const auto count = static_cast<std::int64_t>(layers.size());
  if (count > 1 && layer >= count) {
    throw Error("budgets", name + ": expected layer " + std::to_string(layer) + ", got " + std::to_string(count) + " layers");
  }
  const std::vector<float>& heads = layers[count == 1 ? 0U : static_cast<std::size_t>(layer)];
  if (static_cast<std::int64_t>(heads.size()) != H) {
    throw Error("budgets", name + ": expected " + std::to_string(H) + " heads, got " + std::to_string(heads.size()));
  }
  return heads;
}

HeadBudgets load_head_budgets(const std::string& path) {
  const nlohmann::json document = parse_json(read_text_file(path, "budgets"), path, "budgets");
  const auto keep = document.is_object() ? document.find("keep") : document.end();
  if (!document.is_object() || document.size() != 1 || keep == document.end() || !keep->is_array() || keep->empty()) {
    throw Error("budgets", path + R"(: expected {"keep": [share per head]} or {"keep": [[share per head] per layer]})");
  }
  HeadBudgets budgets{path, {}};
  if (!keep->front().is_array()) {
    budgets.layers.push_back(read_heads(*keep, path));
    return budgets;
  }
  for (const nlohmann::json& layer : *keep) {
    if (!layer.is_array()) throw Error("budgets", path + ": keep: expected one list per layer, got " + layer.dump());
    budgets.layers.push_back(read_heads(layer, path));
  }
  return budgets;
}

}  // namespace winnow
