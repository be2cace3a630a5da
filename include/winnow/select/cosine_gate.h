// Mean-pooled selection behind a self-similarity gate, to measure what the gate is worth.
#pragma once

#include <string>

#include "winnow/select.h"

namespace winnow {

// MeanPool with SpargeAttn's gate: a tile of tokens whose mean may not stand for it is not judged by it.
//   sim(X) = |sum over x in X of x/|x||^2 / n^2    (the mean cosine of all pairs; a zero vector has direction 0)
// of query tiles, and of key tiles after the mean over all keys is subtracted. Tiles with sim <= theta are gated: a gated key tile is
// kept in every row and left out of the softmax, a gated query tile keeps every tile. So are tiles whose sim is not finite.
// SelectReport::gated counts the pairs that this forces.
struct CosineGate {
  static constexpr const char* kName = "cosine_gate";
  float theta = 0.6F;        // in [-1,1]; SpargeAttn's own default. Below 0 nothing is gated
  float cdf = 0.95F;         // as in MeanPool
  bool neighbors = true;     // as in MeanPool
  bool means = true;         // as in MeanPool
  std::string budgets = {};  // as in MeanPool
  void validate() const;
  template <class Self, class Visit>
  static void options(Self& self, Visit&& visit) {
    visit("theta", self.theta);
    visit("cdf", self.cdf);
    visit("neighbors", self.neighbors);
    visit("means", self.means);
    visit("budgets", self.budgets);
  }
};
TilePlan select(const TensorView& q, const TensorView& k, const PlanSpec& spec, const CosineGate& options, Workspace& ws);

}  // namespace winnow
