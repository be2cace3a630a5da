// Does planning pay? The costs of a profile against what a call would have to do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "calib/cost_profile.h"
#include "winnow/callbacks.h"
#include "winnow/methods.h"
#include "winnow/plan.h"
#include "winnow/session.h"

namespace winnow {

// What attention has to do at `density`, and what the method's planning: elements of q, k and v, products of head dim D.
CostWork attend_work(const PlanGeometry& geometry, std::int64_t D, std::int64_t key_heads, double density);
CostWork planning_work(const Method& method, const PlanGeometry& geometry, std::int64_t D, std::int64_t key_heads);

class BreakEven {
 public:
  // Of methods without a density of their own: what is assumed until a sparse call has shown one, and after how many steps
  // without a sparse call the next one is sparse again, to look.
  static constexpr double kAssumedDensity = 0.5;
  static constexpr int kStepsUntilNextLook = 8;

  // With the profile that configuration or environment name, or that lies at the default place; none: never dense for this reason.
  // Throws Error if a named one cannot be used; `diagnostics` hears of one at the default place that cannot.
  static std::optional<BreakEven> load(const AttentionConfig& config, const Diagnostics& diagnostics);
  BreakEven(CostProfile profile, Method method);

  // False if the profile predicts that dense attention takes no longer than planning and attending. True for what it does not know.
  // `keep`: mean share of a budget in place of the method's own density, or 0.
  bool pays(int step, const PlanGeometry& geometry, std::int64_t D, std::int64_t key_heads, const std::string& executor, double keep) const;
  // What a sparse call turned out to be.
  void saw(int step, double pairs, double density);
  void reset();

 private:
  std::optional<double> expected_density(int step, double keep) const;

  CostProfile profile_;
  Method method_;
  // Of the last step that had a sparse call.
  int step_ = -1;
  double pairs_ = 0.0, computed_pairs_ = 0.0;
};

}  // namespace winnow
