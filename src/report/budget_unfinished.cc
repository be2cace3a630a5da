// What a budget study has measured so far, as JSON and back.
#include <limits>

#include "report/budget_study.h"

namespace winnow::report {

namespace {

// Every number of a point and of a trial, in the order of the file.
template <class Point, class Visit>
void visit_point(Point& p, Visit&& visit) {
  visit(p.seed);
  visit(p.expert);
  visit(p.step);
  visit(p.layer);
  visit(p.head);
  visit(p.timestep);
  visit(p.mean_log_l);
  visit(p.entropy);
  visit(p.mass95);
  visit(p.achievable);
}
template <class Trial, class Visit>
void visit_trial(Trial& t, Visit&& visit) {
  visit(t.method);
  visit(t.target);
  visit(t.signal);
  visit(t.density);
  visit(t.rel_l1);
  visit(t.rel_l2);
  visit(t.mass_recall);
}

// Reads the values of a list in turn. A number that is not finite stands as null.
struct ListReader {
  const nlohmann::json& list;
  std::size_t next = 0;
  template <class Value>
  void operator()(Value& value) {
    list.at(next++).get_to(value);
  }
  void operator()(double& value) {
    const nlohmann::json& item = list.at(next++);
    value = item.is_null() ? std::numeric_limits<double>::quiet_NaN() : item.get<double>();
  }
};

}  // namespace

nlohmann::json measured_json(const BudgetStudy& study) {
  nlohmann::json json = {{"tokens", study.tokens}, {"executor", study.executor}};
  json["points"] = json["trials"] = nlohmann::json::array();
  for (const HeadPoint& p : study.points) {
    nlohmann::json& list = json["points"].emplace_back(nlohmann::json::array());
    visit_point(p, [&](const auto& value) { list.push_back(value); });
  }
  for (const BudgetTrial& t : study.trials) {
    nlohmann::json& list = json["trials"].emplace_back(nlohmann::json::array());
    visit_trial(t, [&](const auto& value) { list.push_back(value); });
  }
  return json;
}

BudgetStudy measured_study(const Unfinished& unfinished) {
  BudgetStudy study;
  const nlohmann::json& json = unfinished.taken();
  if (json.is_null()) return study;
  try {
    json.at("tokens").get_to(study.tokens);
    json.at("executor").get_to(study.executor);
    for (const nlohmann::json& list : json.at("points")) visit_point(study.points.emplace_back(), ListReader{list});
    for (const nlohmann::json& list : json.at("trials")) visit_trial(study.trials.emplace_back(), ListReader{list});
  } catch (const nlohmann::json::exception&) {
    unfinished.fail();
  }
  return study;
}

}  // namespace winnow::report
