#include "calib/budget.h"

#include <vector>

#include "calib/json_fields.h"
#include "core/json.h"
#include "core/partial_file.h"
#include "winnow/error.h"

namespace winnow {

namespace {

constexpr const char* kOperation = "budget";
constexpr const char* kFormat = "winnow.budget_calibration";
constexpr std::array<const char*, 2> kExperts = {"high", "low"};

BudgetCalibration::Expert read_expert(JsonFields fields) {
  BudgetCalibration::Expert expert;
  expert.kind = fields.text("kind");
  if (expert.kind != "isotonic" && expert.kind != "line") fields.fail("kind", "isotonic or line", fields.value("kind"));
  expert.points = fields.integer("points", 1, std::int64_t{1} << 40U);
  expert.spearman = fields.number("spearman", -1.0, 1.0);
  BudgetMap& map = expert.map;
  map.x = fields.numbers("ln_max_weight", -1e3, 0.0);
  map.sparsity = fields.numbers("sparsity", 0.0, 1.0);
  if (map.x.empty()) fields.fail("ln_max_weight", "at least one number", fields.value("ln_max_weight"));
  if (map.x.size() != map.sparsity.size()) fields.fail("sparsity", "as many numbers as ln_max_weight", fields.value("sparsity"));
  for (std::size_t i = 1; i < map.x.size(); ++i) {
    if (!(map.x[i] > map.x[i - 1])) fields.fail("ln_max_weight", "ascending numbers", fields.value("ln_max_weight"));
  }
  fields.finish();
  return expert;
}

}  // namespace

const BudgetMap& BudgetCalibration::expert(int index) const {
  if (index >= 0 && index < 2 && experts[static_cast<std::size_t>(index)]) return experts[static_cast<std::size_t>(index)]->map;
  throw Error(kOperation, "expected a calibration of expert " + std::to_string(index) + ", got none: calibrate with more steps");
}

void BudgetCalibration::save(const std::string& path) const {
  nlohmann::ordered_json json = {{"format", kFormat}, {"version", 1}, {"model", model}, {"tokens", tokens}, {"error", error}};
  json["executor"] = {{"name", executor}, {"tile_q", tile_q}, {"tile_k", tile_k}};
  json["experts"] = nlohmann::ordered_json::object();
  for (std::size_t e = 0; e < experts.size(); ++e) {
    if (!experts[e]) continue;
    json["experts"][kExperts[e]] = {{"kind", experts[e]->kind},
                                    {"points", experts[e]->points},
                                    {"spearman", experts[e]->spearman},
                                    {"ln_max_weight", experts[e]->map.x},
                                    {"sparsity", experts[e]->map.sparsity}};
  }
  write_text_file(kOperation, path, json.dump(1) + "\n");
}

BudgetCalibration BudgetCalibration::load(const std::string& path) {
  const nlohmann::json document = parse_json(read_text_file(path, kOperation), path, kOperation);
  JsonFields fields(document, kOperation, path);
  fields.check_format(kFormat);
  BudgetCalibration calibration;
  calibration.model = fields.text("model");
  calibration.tokens = fields.integer("tokens", 1, std::int64_t{1} << 40U);
  calibration.error = fields.number("error", 0.0, 1.0);
  JsonFields executor = fields.object("executor");
  calibration.executor = executor.text("name");
  calibration.tile_q = static_cast<int>(executor.integer("tile_q", 1, 1 << 16));
  calibration.tile_k = static_cast<int>(executor.integer("tile_k", 1, 1 << 16));
  executor.finish();
  JsonFields experts = fields.object("experts");
  for (std::size_t e = 0; e < kExperts.size(); ++e) {
    if (experts.has(kExperts[e])) calibration.experts[e] = read_expert(experts.object(kExperts[e]));
  }
  experts.finish();
  fields.finish();
  return calibration;
}

}  // namespace winnow
