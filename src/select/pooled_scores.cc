#include "select/pooled_scores.h"

#include <algorithm>
#include <cmath>

#include "prep/block_stats.h"
#include "winnow/workspace.h"

namespace winnow {

namespace {

// [B,H,blocks,D]
float* query_means(const TensorView& q, const PooledScores::Blocks& blocks, Workspace& ws) {
  float* means = block_means(q, blocks.queries, {}, MeanLayout::rows, ws);
  const std::int64_t S = q.size(1);
  if (!blocks.whole_last || S <= blocks.queries || S % blocks.queries == 0) return means;
  const Workspace::Scope scratch(ws);
  const float* last = block_means(q.slice(1, S - blocks.queries, S), blocks.queries, {}, MeanLayout::rows, ws);
  const std::int64_t D = q.size(3);
  for (std::int64_t head = 0; head < q.size(0) * q.size(2); ++head) {
    std::copy_n(last + head * D, D, means + ((head + 1) * (S / blocks.queries + 1) - 1) * D);
  }
  return means;
}

}  // namespace

PooledScores::PooledScores(const TensorView& q, const TensorView& k, const PlanGeometry& geometry, float scale, const Blocks& blocks,
                           Workspace& ws)
    : H_(q.size(2)),
      key_heads_(k.size(2)),
      heads_per_group_(q.size(2) / std::max<std::int64_t>(k.size(2), 1)),
      D_(q.size(3)),
      cells_(blocks.cells),
      tile_ld_(padded(geometry.Gk())),
      query_blocks_((geometry.Sq + blocks.queries - 1) / blocks.queries),
      scale_(scale),
      kernels_(block_kernels()) {
  const std::int64_t cell = geometry.tile_k / cells_;
  q_means_ = query_means(q, blocks, ws);
  k_means_ = block_means(k, cell, geometry.key_lengths, MeanLayout::columns, ws, cells_);
  bias_ = ws.allocate<float>(static_cast<std::size_t>(geometry.B * key_heads_ * row()));
  for (std::int64_t b = 0; b < geometry.B && key_heads_ > 0; ++b) {
    float* first = bias(b, 0);
    for (std::int64_t c = 0; c < cells_; ++c) {
      for (std::int64_t j = 0; j < tile_ld_; ++j) {
        const std::int64_t keys = std::clamp<std::int64_t>(geometry.keys(b) - j * geometry.tile_k - c * cell, 0, cell);
        const float log_count =
            blocks.add_log_counts ? static_cast<float>(std::log(static_cast<double>(std::max<std::int64_t>(keys, 1)))) : 0.0F;
        first[c * tile_ld_ + j] = keys > 0 || c == 0 ? log_count : -2e30F;
      }
    }
    for (std::int64_t head = 1; head < key_heads_; ++head) std::copy_n(first, row(), bias(b, head));
  }
}

}  // namespace winnow
