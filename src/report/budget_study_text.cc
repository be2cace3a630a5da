// A budget study as JSON, as Markdown and as panels of the plot.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "device/cpu/features.h"
#include "report/budget_study.h"
#include "report/json_number.h"
#include "report/machine.h"
#include "report/markdown.h"
#include "winnow/threads.h"
#include "winnow/version.h"

namespace winnow::report {

namespace {

using Json = nlohmann::ordered_json;

// Mean over heads of value(point), per layer and step.
template <class Value>
std::vector<media::PlotSeries> lines(const BudgetStudy& study, Value value) {
  std::map<int, std::map<int, std::pair<double, int>>> sums;
  for (const HeadPoint& p : study.points) {
    auto& [sum, count] = sums[p.layer][p.step];
    sum += value(p);
    ++count;
  }
  std::vector<media::PlotSeries> series;
  for (const auto& [layer, steps] : sums) {
    media::PlotSeries& line = series.emplace_back(media::PlotSeries{"layer " + std::to_string(layer), {}});
    for (const auto& [step, sum] : steps) line.points.push_back({static_cast<double>(step), sum.first / sum.second});
  }
  return series;
}

}  // namespace

std::string to_json(const BudgetStudy& study, const BudgetOptions& options) {
  Json json = {{"error", options.error}, {"tokens", study.tokens}, {"executor", study.executor}};
  json["rank"] = Json::array();
  for (const BudgetScore& s : score_budgets(study)) {
    Json record = {{"group", s.group}, {"points", s.points}};
    put(record, "max_weight", s.max_weight);
    put(record, "timestep", s.timestep);
    put(record, "entropy", s.entropy);
    put(record, "oracle_mass95", s.mass95);
    json["rank"].push_back(record);
  }
  json["maps"] = Json::array();
  for (const MapScore& s : score_maps(study)) {
    json["maps"].push_back({{"map", s.map}, {"mean_abs_error", s.mean_error}, {"overshoot", s.overshoot}});
  }
  json["signal_changes"] = Json::array();
  for (const SignalChange& c : signal_changes(study)) json["signal_changes"].push_back({{"step", c.step}, {"change", c.change}});
  json["trials"] = Json::array();
  for (const BudgetTrial& t : mean_trials(study.trials)) {
    json["trials"].push_back({{"method", t.method},
                              {"target_density", t.target},
                              {"budget", t.signal ? "1/l" : "fixed"},
                              {"density", t.density},
                              {"rel_l1", t.rel_l1},
                              {"rel_l2", t.rel_l2},
                              {"mass_recall", t.mass_recall}});
  }
  json["points"] = Json::array();
  for (const HeadPoint& p : study.points) {
    json["points"].push_back({{"expert", p.expert},
                              {"step", p.step},
                              {"layer", p.layer},
                              {"head", p.head},
                              {"timestep", p.timestep},
                              {"mean_ln_l", p.mean_log_l},
                              {"entropy", p.entropy},
                              {"mass95_sparsity", p.mass95},
                              {"achievable_sparsity", p.achievable}});
  }
  json["machine"] = {{"cpu", cpu_name()}, {"isa", isa_names()}, {"threads", num_threads()}};
  json["version"] = version();
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string to_markdown(const BudgetStudy& study) {
  std::vector<Cells> ranks;
  for (const BudgetScore& s : score_budgets(study)) {
    ranks.push_back(
        {s.group, std::to_string(s.points), fixed(s.max_weight, 3), fixed(s.timestep, 3), fixed(s.entropy, 3), fixed(s.mass95, 3)});
  }
  std::vector<Cells> maps;
  for (const MapScore& s : score_maps(study)) maps.push_back({s.map, fixed(s.mean_error, 3), fixed(s.overshoot, 2)});
  std::vector<Cells> trials;
  for (const BudgetTrial& t : mean_trials(study.trials)) {
    trials.push_back({t.method, fixed(t.target, 2), t.signal ? "1/l" : "fixed", fixed(t.density, 3), fixed(t.rel_l1, 4), fixed(t.rel_l2, 4),
                      fixed(t.mass_recall, 3)});
  }
  return block("budget_rank", table({"points of", "number", "1/l", "timestep", "entropy", "oracle 95 % mass"}, ranks)) + "\n" +
         block("budget_maps", table({"map", "mean abs. error", "promises > 0.05 too much"}, maps)) + "\n" +
         block("budget_trials", table({"method", "target", "budget", "density", "rel-L1", "rel-L2", "mass recall"}, trials));
}

std::vector<media::PlotPanel> plot_panels(const BudgetStudy& study) {
  media::PlotPanel signal;
  signal.title = "signal";
  signal.x_label = "step";
  signal.y_label = "mean ln l";
  signal.series = lines(study, [](const HeadPoint& p) { return p.mean_log_l; });
  media::PlotPanel sparsity;
  sparsity.title = "achievable sparsity";
  sparsity.x_label = "step";
  sparsity.y_label = "share of tiles dropped";
  sparsity.series = lines(study, [](const HeadPoint& p) { return p.achievable; });
  media::PlotPanel changes;
  changes.title = "change of the signal from the step before";
  changes.x_label = "step";
  changes.y_label = "mean |difference of mean ln l|";
  changes.series.push_back({"all layers", {}});
  for (const SignalChange& c : signal_changes(study)) changes.series[0].points.push_back({static_cast<double>(c.step), c.change});
  return {std::move(signal), std::move(sparsity), std::move(changes)};
}

}  // namespace winnow::report
