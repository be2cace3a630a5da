// Scaled dot products of block means: the estimate that the cheap selectors share.
#pragma once

#include <cstdint>

#include "prep/block_kernels.h"
#include "winnow/plan.h"
#include "winnow/tensor.h"

namespace winnow {

class Workspace;

// The key tiles that query tiles [begin, end) may take, and those up to whole vectors of scores.
inline TileRange scored_tiles(const PlanGeometry& geometry, std::int64_t b, std::int64_t begin, std::int64_t end) {
  return {geometry.candidates(b, begin).begin / kScorePad * kScorePad, padded(geometry.candidates(b, end - 1).end)};
}

class PooledScores {
 public:
  struct Cells {
    std::int64_t queries = 0;  // tokens per query block; divides tile_q
    // A short query block is pooled over as many tokens as a full one, those before it: a mean over few queries is longer, so that
    // its scores are sharper than those of the blocks beside it and the same cdf would keep too few tiles.
    bool widen_short = false;
    std::int64_t cells = 1;       // key blocks per key tile; divides tile_k
    bool add_log_counts = false;  // ln of a key block's real keys: a softmax over blocks then weighs keys equally
  };
  // The geometry has to outlive the object, whose memory comes from `ws`.
  PooledScores(const TensorView& q, const TensorView& k, const PlanGeometry& geometry, float scale, const Cells& blocks, Workspace& ws);

  // out[i - begin][c][j] = scale * mean(Q_i) . mean(K_jc) + bias for query blocks [begin, end) and key tiles j of `tiles`, as
  // scored_tiles() gives them: rows of `cells` times ld() floats. Cells without keys have a score below -1e30.
  void rows(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end, TileRange tiles, float* out) const {
    const float* const keys = key_head_means(b * key_heads_ + key_head(h));
    for (std::int64_t c = 0; c < cells_; ++c) {
      const std::int64_t at = c * tile_ld_ + tiles.begin;
      kernels_.scores(q_mean(b, h, begin), end - begin, keys + at * D_, tiles.size(), row(), D_, scale_, bias(b, key_head(h)) + at,
                      out + at);
    }
  }
  std::int64_t ld() const { return tile_ld_; }
  std::int64_t row() const { return cells_ * tile_ld_; }
  // Query blocks of a tile that hold tokens.
  std::int64_t query_blocks(const PlanGeometry& geometry, std::int64_t tile) const {
    const std::int64_t block = geometry.tile_q / query_cells_;
    return (geometry.tile_queries(tile) + block - 1) / block;
  }
  std::int64_t key_head(std::int64_t h) const { return h / heads_per_group_; }
  std::int64_t key_heads() const { return key_heads_; }
  std::int64_t D() const { return D_; }
  float scale() const { return scale_; }

  float* q_mean(std::int64_t b, std::int64_t h, std::int64_t block) const { return q_means_ + ((b * H_ + h) * query_blocks_ + block) * D_; }
  // Of key head b*Hk + head: in_panels() of its row() columns [cells, ld].
  const float* key_head_means(std::int64_t index) const { return k_means_ + index * D_ * row(); }
  // [cells, ld] of a key head, added to the scores.
  float* bias(std::int64_t b, std::int64_t head) const { return bias_ + (b * key_heads_ + head) * row(); }

 private:
  std::int64_t H_;
  std::int64_t key_heads_;
  std::int64_t heads_per_group_;
  std::int64_t D_;
  std::int64_t cells_;
  std::int64_t tile_ld_;       // padded(Gk)
  std::int64_t query_cells_;   // per query tile
  std::int64_t query_blocks_;  // Gq * query_cells_
  float scale_;
  const BlockKernels& kernels_;
  float* q_means_ = nullptr;        // [B,H,query blocks,D]
  const float* k_means_ = nullptr;  // [B,Hk], in_panels()
  float* bias_ = nullptr;           // [B,Hk,cells,ld]
};

}  // namespace winnow
