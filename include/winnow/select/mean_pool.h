// Selection by mean-pooled scores.
#pragma once

#include <string>

#include "winnow/select.h"

namespace winnow {

// Mean-pooled block scores (SpargeAttn's first stage without its gate) with a CDF or a fixed share per row.
//   p[i,:] = softmax_j( scale * mean(Q_i) . mean(K_j) + ln n_j )      Q_i: query tile, K_j: key tile, n_j its real keys
//   A last query tile that is short is pooled over the last tile_q queries: so few alone would be sharper than the rest.
//   cdf: keeps the smallest set of tiles that holds the forced ones, largest p first, with sum >= cdf * total; at least one;
//   cdf = 1 keeps all. density: keeps the ceil(density * tiles) of largest p, forced ones first.
// Forced: the neighbors, and tiles whose score is not finite. Ties go to the smaller bit-reversed index.
// The plan is the same bits for any number of threads and on every ISA.
struct MeanPool {
  static constexpr const char* kName = "mean_pool";
  // Measured on winnow-tiny, 30 steps, against dense: 0.9 gives 27.1 dB at density .58, 0.95 30.3 dB at .67, 0.97 32.0 dB at .72.
  static constexpr float kDefaultCdf = 0.95F;
  float cdf = kDefaultCdf;
  float density = 0.0F;  // in (0,1], in place of cdf, which is left at its default; 0 = unset
  // Key tiles within one tile of the query tile's own positions are always kept. Only where Sq == Sk.
  bool neighbors = true;
  bool means = true;  // tiles not kept are represented by their means
  // A JSON file of shares to keep per head (docs/configuration.md), in place of cdf and density; empty: none.
  std::string budgets = {};
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
TilePlan select(const TensorView& q, const TensorView& k, const PlanSpec& spec, const MeanPool& options, Workspace& ws);

}  // namespace winnow
