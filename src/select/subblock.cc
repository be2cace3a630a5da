// Sub-block scores. Formula: include/winnow/select/subblock.h.
#include "winnow/select/subblock.h"

#include "core/text.h"
#include "select/pooled_scores.h"
#include "select/rows.h"
#include "select/spec.h"
#include "winnow/error.h"
#include "winnow/threads.h"

namespace winnow {

namespace {

// Scores of whole tiles from those of their cells.
class SubBlockScores {
 public:
  SubBlockScores(const PooledScores& pooled, const PlanGeometry& geometry, std::int64_t query_cells, std::int64_t key_cells, Workspace& ws)
      : pooled_(pooled),
        geometry_(geometry),
        query_cells_(query_cells),
        key_cells_(key_cells),
        kernels_(block_kernels()),
        cells_(ws.allocate<float>(static_cast<std::size_t>(num_threads() * query_cells * pooled.row()))) {}

  void operator()(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end, int worker, float* out) const {
    float* const cells = cells_ + worker * query_cells_ * pooled_.row();
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i * query_cells_;
      const std::int64_t last = first + pooled_.query_blocks(geometry_, i);
      const TileRange tiles = scored_tiles(geometry_, b, i, i + 1);
      pooled_.rows(b, h, first, last, tiles, cells);
      kernels_.log_sum_exp(cells + tiles.begin, (last - first) * key_cells_, tiles.size(), pooled_.ld(),
                           out + (i - begin) * pooled_.ld() + tiles.begin);
    }
  }

 private:
  PooledScores pooled_;
  const PlanGeometry& geometry_;
  std::int64_t query_cells_;  // per query tile
  std::int64_t key_cells_;    // per key tile
  const BlockKernels& kernels_;
  float* cells_;  // per worker [query_cells][key_cells][ld]
};

void check_cells(const PlanGeometry& geometry, const SubBlock& options) {
  const int cell = geometry.tile_k / options.n_q;
  if (geometry.tile_k % options.n_k == 0 && geometry.tile_k % options.n_q == 0 && geometry.tile_q % cell == 0 &&
      geometry.tile_q / cell * options.n_k <= kMaxLogSumRows) {
    return;
  }
  throw Error("select", "subblock: expected tiles of whole cells, at most " + std::to_string(kMaxLogSumRows) +
                            " pairs of cells in a pair of tiles, got tiles " + std::to_string(geometry.tile_q) + "x" +
                            std::to_string(geometry.tile_k) + " with n_q " + std::to_string(options.n_q) + " and n_k " +
                            std::to_string(options.n_k));
}

}  // namespace

void SubBlock::validate() const {
  if (!(sparsity >= 0.0F && sparsity < 1.0F)) throw Error("config", "sparsity: expected a number in [0,1), got " + short_number(sparsity));
  const auto check = [](const char* key, int n) {
    if (n != 1 && n != 2 && n != 4 && n != 8) throw Error("config", std::string(key) + ": expected 1, 2, 4 or 8, got " + std::to_string(n));
  };
  check("n_k", n_k);
  check("n_q", n_q);
}

TilePlan select(const TensorView& q, const TensorView& k, const PlanSpec& spec, const SubBlock& options, Workspace& ws) {
  options.validate();
  const PlanGeometry geometry = plan_geometry(q, k, spec);
  check_cells(geometry, options);
  const std::int64_t cell = geometry.tile_k / options.n_q;
  const Budget budget{Budget::Kind::share, 1.0F - options.sparsity};
  return select_rows(geometry, spec, {budget, options.neighbors, options.means, options.budgets}, ws, [&] {
    const PooledScores pooled(q, k, geometry, logit_scale(spec.scale, q.size(3)), {.queries = cell, .cells = options.n_k}, ws);
    return SubBlockScores(pooled, geometry, geometry.tile_q / cell, options.n_k, ws);
  });
}

}  // namespace winnow
