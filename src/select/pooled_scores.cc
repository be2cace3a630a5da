#include "select/pooled_scores.h"

#include <algorithm>
#include <cmath>

#include "prep/block_stats.h"
#include "winnow/workspace.h"

namespace winnow {

PooledScores::PooledScores(const TensorView& q, const TensorView& k, const PlanGeometry& geometry, float scale, const Cells& blocks,
                           Workspace& ws)
    : H_(q.size(2)),
      key_heads_(k.size(2)),
      heads_per_group_(q.size(2) / std::max<std::int64_t>(k.size(2), 1)),
      D_(q.size(3)),
      cells_(blocks.cells),
      tile_ld_(padded(geometry.Gk())),
      query_cells_(geometry.tile_q / blocks.queries),
      query_blocks_(geometry.Gq() * query_cells_),
      scale_(scale),
      kernels_(block_kernels()) {
  const std::int64_t cell = geometry.tile_k / cells_;
  Blocks queries = winnow::query_blocks(geometry, query_cells_);
  queries.widen = blocks.widen_short;
  q_means_ = block_means(q, queries, MeanLayout::rows, ws);
  k_means_ = block_means(k, key_blocks(geometry, cells_), MeanLayout::panels, ws);
  bias_ = ws.allocate<float>(static_cast<std::size_t>(geometry.B * key_heads_ * row()));
  for (std::int64_t b = 0; b < geometry.B && key_heads_ > 0; ++b) {
    float* first = bias(b, 0);
    for (std::int64_t c = 0; c < cells_; ++c) {
      for (std::int64_t j = 0; j < tile_ld_; ++j) {
        const std::int64_t in_tile = j < geometry.Gk() ? geometry.tile_keys(b, j) : 0;
        const std::int64_t keys = std::clamp<std::int64_t>(in_tile - c * cell, 0, cell);
        const float log_count =
            blocks.add_log_counts ? static_cast<float>(std::log(static_cast<double>(std::max<std::int64_t>(keys, 1)))) : 0.0F;
        first[c * tile_ld_ + j] = keys > 0 || c == 0 ? log_count : -2e30F;
      }
    }
    for (std::int64_t head = 1; head < key_heads_; ++head) std::copy_n(first, row(), bias(b, head));
  }
}

}  // namespace winnow
