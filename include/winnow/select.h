// Selectors: ways of deciding which key tiles a query tile needs. All return a TilePlan whose memory comes from `ws` and lives
// as long as its scope; a repeated call takes nothing from the system. q: [B,Sq,H,D]  k: [B,Sk,Hk,D], H % Hk == 0, f32, f16 or
// bf16, any strides with contiguous D. Inputs are only read. Throw Error on any mismatch, before any work.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "winnow/plan.h"
#include "winnow/tensor.h"

namespace winnow {

class Workspace;

// What an executor wants of a plan, as plain numbers.
struct PlanSpec {
  int tile_q = 128;
  int tile_k = 64;
  int mean_group = 64;
  int granularity = 1;                                    // tiles per row are rounded up to a multiple of this (capped at all tiles)
  float scale = std::numeric_limits<float>::quiet_NaN();  // of the logits; NaN means 1/sqrt(D)
  std::vector<std::int64_t> key_lengths = {};             // see PlanGeometry
};
PlanGeometry plan_geometry(const TensorView& q, const TensorView& k, const PlanSpec& spec);

// Mean-pooled block scores with a per-row CDF (SpargeAttn's first stage without its gate).
//   p[i,:] = softmax_j( scale * mean(Q_i) . mean(K_j) + ln n_j )      Q_i: query tile, K_j: key tile, n_j its real keys
//   keeps the smallest set of tiles that holds the forced ones, largest p first, with sum >= cdf * total; at least one;
//   cdf = 1 keeps all.
// Forced: the neighbors, and tiles whose score is not finite. Ties go to the smaller bit-reversed index.
// The plan is the same bits for any number of threads and on every ISA.
struct MeanPool {
  // Measured on winnow-tiny, 30 steps, against dense: 0.9 gives 27.1 dB at density .58, 0.95 30.1 dB at .67, 0.97 31.6 dB at .72.
  static constexpr float kDefaultCdf = 0.95F;
  float cdf = kDefaultCdf;
  // Key tiles within one tile of the query tile's own positions are always kept. Only where Sq == Sk.
  bool neighbors = true;
  bool means = true;  // tiles not kept are represented by their means
  void validate() const;
};
TilePlan select_mean_pool(const TensorView& q, const TensorView& k, const PlanSpec& spec, const MeanPool& options, Workspace& ws);

// The exact softmax mass of every tile, computed densely in f32: what an ideal selector would see. Slow; for measurement.
// Same order, ties and determinism as MeanPool, with the true mass (mean over the query tile) in place of p.
struct Oracle {
  // Exactly one of the two is in (0,1]; the other is 0.
  float cdf = 0.0F;      // smallest set with this share of the true mass, per row
  float density = 0.0F;  // the ceil(density * Gk) tiles of largest true mass, per row
  bool means = false;
  void validate() const;
};
TilePlan select_oracle(const TensorView& q, const TensorView& k, const PlanSpec& spec, const Oracle& options, Workspace& ws);

// How good a plan's choice is. Rows with non-finite logits are left out.
struct Recall {
  double mass = 0.0;  // true softmax mass of the kept tiles, mean over queries
  double set = 0.0;   // |kept and oracle's top-k| / k with the same k per row, mean over rows that keep a tile
};
Recall plan_recall(const TilePlan& plan, const TensorView& q, const TensorView& k, float scale, Workspace& ws);

}  // namespace winnow
