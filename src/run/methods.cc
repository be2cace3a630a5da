#include "run/methods.h"

#include "winnow/error.h"
#include "winnow/methods.h"

namespace winnow {

namespace {

template <class Options>
concept Selector = requires(const TensorView& x, const PlanSpec& spec, const Options& options, Workspace& ws) {
  { select(x, x, spec, options, ws) } -> std::same_as<TilePlan>;
};

TilePlan load_fitting(const std::string& path, const TensorView& q, const TensorView& k, const PlanSpec& spec) {
  TilePlan plan = TilePlan::load(path);
  check_plan_fits(plan, q, k, spec);
  return plan;
}

}  // namespace

void check_plan_fits(const TilePlan& plan, const TensorView& q, const TensorView& k, const PlanSpec& spec) {
  const PlanGeometry& have = plan.geometry();
  const PlanGeometry want = plan_geometry(q, k, spec);
  if (have.B != want.B || have.H != want.H || have.Sq != want.Sq || have.Sk != want.Sk) {
    throw Error("session", "plan: expected one for q " + q.describe() + " and k " + k.describe() + ", got " + plan.describe());
  }
}

bool selects_tiles(const Method& method) {
  return std::visit([]<class Options>(const Options&) { return Selector<Options> || std::is_same_v<Options, FixedPlan>; }, method);
}

TilePlan make_plan(const TensorView& q, const TensorView& k, const PlanSpec& spec, const Method& method, Workspace& ws) {
  return std::visit(
      [&]<class Options>(const Options& options) {
        if constexpr (Selector<Options>) {
          return select(q, k, spec, options, ws);
        } else if constexpr (std::is_same_v<Options, FixedPlan>) {
          return load_fitting(options.path, q, k, spec);
        } else {
          return TilePlan::dense(plan_geometry(q, k, spec), DenseReason::none, &ws);
        }
      },
      method);
}

}  // namespace winnow
