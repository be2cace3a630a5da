// Selection by mean-pooled scores.
#pragma once

#include "winnow/select.h"

namespace winnow {

// Mean-pooled block scores with a per-row CDF (SpargeAttn's first stage without its gate).
//   p[i,:] = softmax_j( scale * mean(Q_i) . mean(K_j) + ln n_j )      Q_i: query tile, K_j: key tile, n_j its real keys
//   A last query tile that is short is pooled over the last tile_q queries: so few alone would be sharper than the rest.
//   keeps the smallest set of tiles that holds the forced ones, largest p first, with sum >= cdf * total; at least one;
//   cdf = 1 keeps all.
// Forced: the neighbors, and tiles whose score is not finite. Ties go to the smaller bit-reversed index.
// The plan is the same bits for any number of threads and on every ISA.
struct MeanPool {
  static constexpr const char* kName = "mean_pool";
  // Measured on winnow-tiny, 30 steps, against dense: 0.9 gives 27.1 dB at density .58, 0.95 30.3 dB at .67, 0.97 32.0 dB at .72.
  static constexpr float kDefaultCdf = 0.95F;
  float cdf = kDefaultCdf;
  // Key tiles within one tile of the query tile's own positions are always kept. Only where Sq == Sk.
  bool neighbors = true;
  bool means = true;  // tiles not kept are represented by their means
  void validate() const;
  template <class Self, class Visit>
  static void options(Self& self, Visit&& visit) {
    visit("cdf", self.cdf);
    visit("neighbors", self.neighbors);
    visit("means", self.means);
  }
};
TilePlan select(const TensorView& q, const TensorView& k, const PlanSpec& spec, const MeanPool& options, Workspace& ws);

}  // namespace winnow
