// Selection by the true softmax mass.
#pragma once

#include <string>

#include "winnow/select.h"

namespace winnow {

// The exact softmax mass of every tile, computed densely in f32: what an ideal selector would see. Slow; for measurement.
// Same order, ties and determinism as MeanPool, with the true mass (mean over the query tile) in place of p.
struct Oracle {
  static constexpr const char* kName = "oracle";
  // Exactly one of the two is in (0,1]; the other is 0.
  float cdf = 0.0F;        // smallest set with this share of the true mass, per row
  float density = 0.0F;    // the ceil(density * Gk) tiles of largest true mass, per row
  bool neighbors = false;  // as in MeanPool; off, so that the choice is the best one
  bool means = false;
  std::string budgets = {};  // as in MeanPool
  void validate() const;
  template <class Self, class Visit>
  static void options(Self& self, Visit&& visit) {
    visit("cdf", self.cdf);
    visit("density", self.density);
    visit("neighbors", self.neighbors);
    visit("means", self.means);
    visit("budgets", self.budgets);
  }
};
TilePlan select(const TensorView& q, const TensorView& k, const PlanSpec& spec, const Oracle& options, Workspace& ws);

}  // namespace winnow
