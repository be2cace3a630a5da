// Mean-pooled block scores with a per-row CDF. Formula: include/winnow/select.h.
#include <algorithm>
#include <cmath>
#include <string>

#include "core/threads.h"
#include "prep/block_kernels.h"
#include "prep/block_stats.h"
#include "select/ranking.h"
#include "select/spec.h"
#include "winnow/error.h"
#include "winnow/select/mean_pool.h"
#include "winnow/threads.h"
#include "winnow/workspace.h"

namespace winnow {

namespace {

constexpr std::int64_t kRowsPerTask = 4;  // what BlockKernels::scores computes side by side

// One worker's memory.
struct Scratch {
  float* scores = nullptr;         // [kRowsPerTask, padded(Gk)]
  float* mass = nullptr;           // [padded(Gk)]
  std::uint64_t* order = nullptr;  // [Gk]
};

class MeanPoolSelector {
 public:
  MeanPoolSelector(const TensorView& q, const TensorView& k, const PlanGeometry& geometry, const PlanSpec& spec, const MeanPool& options,
                   Workspace& ws)
      : geometry_(geometry),
        spec_(spec),
        options_(options),
        D_(q.size(3)),
        heads_per_group_(q.size(2) / std::max<std::int64_t>(k.size(2), 1)),
        key_heads_(k.size(2)),
        ld_(padded(geometry.Gk())),
        scale_(logit_scale(spec.scale, D_)),
        kernels_(block_kernels()) {
    q_means_ = query_means(q, ws);
    k_means_ = block_means(k, geometry.tile_k, geometry.key_lengths, MeanLayout::columns, ws);
    bias_ = ws.allocate<float>(static_cast<std::size_t>(geometry.B * ld_));
    for (std::int64_t b = 0; b < geometry.B; ++b) {
      for (std::int64_t j = 0; j < ld_; ++j) {
        const std::int64_t keys = std::clamp<std::int64_t>(geometry.keys(b) - j * geometry.tile_k, 1, geometry.tile_k);
        bias_[b * ld_ + j] = static_cast<float>(std::log(static_cast<double>(keys)));
      }
    }
    workers_ = num_threads();
    scratch_ = ws.allocate<Scratch>(static_cast<std::size_t>(workers_));
    for (int w = 0; w < workers_; ++w) {
      scratch_[w].scores = ws.allocate<float>(static_cast<std::size_t>(kRowsPerTask * ld_));
      scratch_[w].mass = ws.allocate<float>(static_cast<std::size_t>(ld_));
      scratch_[w].order = ws.allocate<std::uint64_t>(static_cast<std::size_t>(ld_));
    }
  }

  void run(KeptTiles& kept) const {
    const std::int64_t chunks = (geometry_.Gq() + kRowsPerTask - 1) / kRowsPerTask;
    parallel_for(geometry_.B * geometry_.H * chunks, [&](std::int64_t task, int worker) {
      const std::int64_t head = task / chunks;  // b*H + h
      const std::int64_t begin = task % chunks * kRowsPerTask;
      select_rows(head / geometry_.H, head % geometry_.H, begin, std::min(begin + kRowsPerTask, geometry_.Gq()), scratch_[worker], kept);
    });
  }

 private:
  // [B,H,Gq,D]. A short last tile is pooled over the last tile_q queries of the sequence: a mean over few queries is longer, so
  // that its scores are sharper than those of the tiles beside it and the same cdf would keep too few tiles.
  const float* query_means(const TensorView& q, Workspace& ws) const {
    float* means = block_means(q, geometry_.tile_q, {}, MeanLayout::rows, ws);
    if (geometry_.Sq <= geometry_.tile_q || geometry_.Sq % geometry_.tile_q == 0) return means;
    const Workspace::Scope scratch(ws);
    const TensorView window = q.slice(1, geometry_.Sq - geometry_.tile_q, geometry_.Sq);
    const float* last = block_means(window, geometry_.tile_q, {}, MeanLayout::rows, ws);
    for (std::int64_t head = 0; head < geometry_.B * geometry_.H; ++head) {
      std::copy_n(last + head * D_, D_, means + ((head + 1) * geometry_.Gq() - 1) * D_);
    }
    return means;
  }

  // Query tiles [begin, end) of one head.
  void select_rows(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end, const Scratch& scratch, KeptTiles& kept) const {
    const std::int64_t n = geometry_.key_tiles(b);
    if (n == 0) return;
    const float* q = q_means_ + ((b * geometry_.H + h) * geometry_.Gq() + begin) * D_;
    const float* kt = k_means_ + (b * key_heads_ + h / heads_per_group_) * D_ * ld_;
    kernels_.scores(q, end - begin, kt, ld_, D_, scale_, bias_ + b * ld_, scratch.scores);
    for (std::int64_t i = begin; i < end; ++i) select_row(b, h, i, n, scratch.scores + (i - begin) * ld_, scratch, kept);
  }

  void select_row(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t n, float* scores, const Scratch& scratch,
                  KeptTiles& kept) const {
    const auto size = static_cast<std::size_t>(n);
    const std::span<std::uint64_t> order(scratch.order, size);
    const RowRules rules = row_rules(geometry_, b, i, options_.neighbors);
    const std::int64_t forced = rank_tiles({scores, size}, rules, order);
    float largest = -std::numeric_limits<float>::infinity();
    for (std::int64_t j = 0; j < n; ++j) {
      if (std::isfinite(scores[j])) largest = std::max(largest, scores[j]);
    }
    std::copy_n(scores, n, scratch.mass);
    std::fill(scratch.mass + n, scratch.mass + ld_, 0.0F);
    kernels_.exp_sum(scratch.mass, ld_, largest);
    const std::int64_t count = count_for_mass({scratch.mass, size}, rules.candidates, order, forced, options_.cdf);
    kept.keep(geometry_.row(b, h, i), order.first(static_cast<std::size_t>(snap(count, spec_.granularity, rules.candidates.size()))));
  }

  const PlanGeometry& geometry_;
  const PlanSpec& spec_;
  const MeanPool& options_;
  std::int64_t D_;
  std::int64_t heads_per_group_;
  std::int64_t key_heads_;
  std::int64_t ld_;
  float scale_;
  const BlockKernels& kernels_;
  const float* q_means_ = nullptr;  // [B,H,Gq,D]
  const float* k_means_ = nullptr;  // [B,Hk,D,ld]
  float* bias_ = nullptr;           // [B,ld] ln of each tile's real keys
  Scratch* scratch_ = nullptr;
  int workers_ = 1;
};

}  // namespace

void MeanPool::validate() const {
  if (!(cdf > 0.0F && cdf <= 1.0F)) throw Error("config", "cdf: expected a number in (0,1], got " + std::to_string(cdf));
}

TilePlan select(const TensorView& q, const TensorView& k, const PlanSpec& spec, const MeanPool& options, Workspace& ws) {
  options.validate();
  const PlanGeometry geometry = plan_geometry(q, k, spec);
  KeptTiles kept(geometry, ws);
  {
    const Workspace::Scope scratch(ws);
    MeanPoolSelector(q, k, geometry, spec, options, ws).run(kept);
  }
  return kept.plan(geometry, options.means ? Skipped::mean : Skipped::drop, ws);
}

}  // namespace winnow
