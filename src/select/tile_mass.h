// The exact softmax mass of every (query tile, key tile) of one head: what an ideal selector would see. Quadratic time,
// for measurement only; memory is O(Gq*Gk + Sk*D).
#pragma once

#include <cstdint>

#include "winnow/plan.h"
#include "winnow/tensor.h"

namespace winnow {

class Workspace;
struct BlockKernels;

class TileMass {
 public:
  // Logits are scale * q.k in f32. The views and the geometry have to outlive the object, whose memory comes from `ws`.
  TileMass(const TensorView& q, const TensorView& k, const PlanGeometry& geometry, float scale, Workspace& ws);

  // mass[i][j], [Gq, Gk]: the mean over query tile i's rows of their softmax weight on key tile j's valid keys.
  // Rows sum to 1 over their candidates (0 without keys), others are 0; NaN where logits are not finite. Valid until the next call.
  const float* head(std::int64_t b, std::int64_t h);

 private:
  struct Scratch;
  void load_row(const TensorView& x, std::int64_t b, std::int64_t token, std::int64_t head, float* out) const;
  void transpose_keys(std::int64_t b, std::int64_t key_head);
  void query_tile(std::int64_t b, std::int64_t h, std::int64_t i, const Scratch& scratch);
  void statistics(std::int64_t rows, std::int64_t tile, std::int64_t keys, const Scratch& scratch);

  const TensorView q_;
  const TensorView k_;
  const PlanGeometry& geometry_;
  const float scale_;
  const BlockKernels& kernels_;
  const std::int64_t D_;
  const std::int64_t tile_ld_;  // padded(tile_k)
  float* keys_ = nullptr;       // [Gk] tiles of one key head, in_panels() of tile_ld columns
  std::int64_t loaded_ = -1;    // b*Hk + key head of keys_
  float* zeros_ = nullptr;      // [tile_ld]
  float* mass_ = nullptr;       // [Gq, Gk]
  Scratch* scratch_ = nullptr;  // per worker
};

}  // namespace winnow
