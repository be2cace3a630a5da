// Selection by a threshold on block scores.
#pragma once

#include <string>

#include "winnow/select.h"

namespace winnow {

// Sol's rule: a block of tile_k queries keeps the key tiles whose score stands out from its own row of scores.
//   s_j = scale * mean(Q_I) . mean(K_j)      kept: s_j >= mean_j(s) + tau * std
//   std^2 = var_j(s), with exact_spread: the full covariance of the key blocks' means (Sol's "exact")
//         = scale^2 sum_d mean(Q_I)_d^2 var_j(mean(K_j)_d), without: their variances per channel (Sol's "diag")
// A query tile keeps what one of its blocks keeps, at least one tile. Forced: the neighbors, and tiles whose score is not finite, which no
// mean or variance counts. Where shares to keep are given (PlanSpec::keep, budgets), they take the tiles of largest (s_j - mean) / std. The
// plan is the same bits for any number of threads and on every ISA.
struct Sol {
  static constexpr const char* kName = "sol";
  float tau = 1.0F;  // any finite number; larger keeps less
  bool exact_spread = true;
  bool neighbors = true;
  bool means = true;         // as in MeanPool: the rule counts on it
  std::string budgets = {};  // as in MeanPool
  void validate() const;
  template <class Self, class Visit>
  static void options(Self& self, Visit&& visit) {
    visit("tau", self.tau);
    visit("exact_spread", self.exact_spread);
    visit("neighbors", self.neighbors);
    visit("means", self.means);
    visit("budgets", self.budgets);
  }
};
TilePlan select(const TensorView& q, const TensorView& k, const PlanSpec& spec, const Sol& options, Workspace& ws);

}  // namespace winnow
