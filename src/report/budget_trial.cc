#include "report/budget_trial.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/options.h"
#include "select/tile_mass.h"
#include "steps/budget.h"
#include "winnow/attend.h"
#include "winnow/methods.h"
#include "winnow/metrics.h"
#include "winnow/plan.h"

namespace winnow::report {

namespace {

constexpr std::array<float, 2> kTargets = {0.5F, 0.25F};

std::array<Method, 2> methods_at(float keep) { return {MeanPool{.density = keep}, SubBlock{.sparsity = 1.0F - keep}}; }

class Trials {
 public:
  Trials(const AttentionInputs& call, const std::string& executor, Workspace& ws)
      : call_(call), ws_(ws), geometry_(plan_geometry(call.q, call.k, {})) {
    options_.executor = executor;
    const auto elements = static_cast<std::size_t>(call.q.numel());
    const auto shape = {std::int64_t{1}, geometry_.Sq, geometry_.H, call.q.size(3)};
    dense_ = TensorView(ws.allocate<float>(elements), DType::f32, shape);
    sparse_ = TensorView(ws.allocate<float>(elements), DType::f32, shape);
    TileMass masses(call.q, call.k, geometry_, 1.0F / std::sqrt(static_cast<float>(call.q.size(3))), ws);
    const std::int64_t pairs = geometry_.Gq() * geometry_.Gk();
    for (std::int64_t h = 0; h < geometry_.H; ++h) {
      const float* mass = masses.head(0, h);
      mass_.insert(mass_.end(), mass, mass + pairs);
    }
    run_dense();
  }

  BudgetTrial run(const Method& method, float target, bool signal) {
    const Workspace::Scope scope(ws_);
    std::vector<float> keep(static_cast<std::size_t>(geometry_.H), target);
    if (signal) {
      for (std::size_t h = 0; h < keep.size(); ++h) keep[h] = static_cast<float>(free_keep(mean_log_l_[h], geometry_.Sk, 0.95, 0.6));
      clamp_and_move(keep, 0.02, 1.0, double{target});
    }
    PlanSpec spec;
    spec.grid = call_.context.grid;
    spec.keep = keep;
    const TilePlan plan = make_plan(call_.q, call_.k, spec, method, ws_);
    attend(plan, call_.q, call_.k, call_.v, sparse_, options_, ws_);
    return {method_name(method),     double{target},          signal,           plan.density(),
            rel_l1(sparse_, dense_), rel_l2(sparse_, dense_), mass_recall(plan)};
  }

 private:
  void run_dense() {
    const Workspace::Scope scope(ws_);
    AttendOptions options = options_;
    options.stats.inv_l =
        TensorView(ws_.allocate<float>(static_cast<std::size_t>(geometry_.H * geometry_.Sq)), DType::f32, {1, geometry_.H, geometry_.Sq});
    attend(TilePlan::dense(geometry_, DenseReason::requested, &ws_), call_.q, call_.k, call_.v, dense_, options, ws_);
    mean_log_l_.resize(static_cast<std::size_t>(geometry_.H));
    mean_log_l(options.stats.inv_l, mean_log_l_);
  }

  double mass_recall(const TilePlan& plan) const {
    double sum = 0.0;
    for (std::int64_t row = 0; row < geometry_.rows(); ++row) {
      double kept = 0.0;
      for (const std::int32_t tile : plan.tiles(Tier::refine, row))
        kept += double{mass_[static_cast<std::size_t>(row * geometry_.Gk() + tile)]};
      sum += kept * static_cast<double>(geometry_.tile_queries(geometry_.query_tile(row)));
    }
    return sum / static_cast<double>(geometry_.H * geometry_.Sq);
  }

  const AttentionInputs& call_;
  Workspace& ws_;
  PlanGeometry geometry_;
  AttendOptions options_;
  TensorView dense_, sparse_;
  std::vector<float> mass_;  // [H, Gq, Gk]
  std::vector<double> mean_log_l_;
};

}  // namespace

std::vector<BudgetTrial> try_budgets(const AttentionInputs& call, const std::string& executor, Workspace& ws) {
  const Workspace::Scope scope(ws);
  Trials trials(call, executor, ws);
  std::vector<BudgetTrial> results;
  for (const float target : kTargets) {
    for (const Method& method : methods_at(target)) {
      for (const bool signal : {false, true}) results.push_back(trials.run(method, target, signal));
    }
  }
  return results;
}

std::vector<BudgetTrial> mean_trials(const std::vector<BudgetTrial>& trials) {
  std::vector<BudgetTrial> means;
  std::vector<double> counts;
  for (const BudgetTrial& trial : trials) {
    const auto same = [&](const BudgetTrial& m) {
      return m.method == trial.method && m.target == trial.target && m.signal == trial.signal;
    };
    const auto found = static_cast<std::size_t>(std::find_if(means.begin(), means.end(), same) - means.begin());
    if (found == means.size()) {
      means.push_back({trial.method, trial.target, trial.signal});
      counts.push_back(0.0);
    }
    BudgetTrial& mean = means[found];
    mean.density += trial.density;
    mean.rel_l1 += trial.rel_l1;
    mean.rel_l2 += trial.rel_l2;
    mean.mass_recall += trial.mass_recall;
    ++counts[found];
  }
  for (std::size_t i = 0; i < means.size(); ++i) {
    for (double* value : {&means[i].density, &means[i].rel_l1, &means[i].rel_l2, &means[i].mass_recall}) *value /= counts[i];
  }
  return means;
}

}  // namespace winnow::report
