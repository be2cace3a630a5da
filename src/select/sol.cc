// Thresholds on block scores. Formula: include/winnow/select/sol.h.
#include "winnow/select/sol.h"

#include <cmath>

#include "select/pooled_scores.h"
#include "select/rows.h"
#include "select/spec.h"
#include "winnow/error.h"

namespace winnow {

namespace {

// How far each key tile's score lies above its row's mean, in standard deviations.
class SolScores {
 public:
  SolScores(const PooledScores& pooled, const PlanGeometry& geometry, std::int64_t blocks, Workspace& ws)
      : pooled_(pooled),
        geometry_(geometry),
        blocks_(blocks),
        documents_(geometry.key_layout ? geometry.key_layout->documents() : 1),
        variances_(ws.allocate<float>(static_cast<std::size_t>(geometry.B * pooled.key_heads() * documents_ * pooled.D()))),
        scores_(ws.allocate<float>(static_cast<std::size_t>(num_threads() * blocks * pooled.ld()))) {
    const std::int64_t D = pooled.D();
    parallel_for(geometry.B * pooled.key_heads() * documents_, [&](std::int64_t i, int) {
      const std::int64_t head = i / documents_;  // b*Hk + key head
      const TileRange tiles = geometry.key_layout ? geometry.key_layout->document_tiles(i % documents_)
                                                  : TileRange{0, geometry.key_tiles(head / pooled.key_heads())};
      for (std::int64_t d = 0; d < D; ++d) {
        const float* means = pooled.key_head_means(head) + d * pooled.ld() + tiles.begin;
        variances_[i * D + d] = moments({means, static_cast<std::size_t>(tiles.size())}).variance;
      }
    });
  }

  void operator()(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end, int worker, float* out) const {
    float* const scores = scores_ + worker * blocks_ * pooled_.ld();
    const auto n = static_cast<std::size_t>(geometry_.key_tiles(b));
    for (std::int64_t i = begin; i < end; ++i, out += pooled_.ld()) {
      const std::int64_t first = i * blocks_;
      const std::int64_t last = first + pooled_.query_blocks(geometry_, i);
      pooled_.rows(b, h, first, last, scores);
      const TileRange candidates = geometry_.candidates(b, i);
      const std::int64_t document = documents_ > 1 ? geometry_.query_layout->document(i) : 0;
      for (std::int64_t block = first; block < last; ++block) {
        const std::span<const float> row(scores + (block - first) * pooled_.ld(), n);
        const float mean =
            moments(row.subspan(static_cast<std::size_t>(candidates.begin), static_cast<std::size_t>(candidates.size()))).mean;
        const float deviation = spread(b, h, block, document);
        for (std::size_t j = 0; j < n; ++j) {
          const float z = (row[j] - mean) / deviation;
          out[j] = block == first || !(z <= out[j]) ? z : out[j];  // a score that is not a number stays
        }
      }
    }
  }

 private:
  struct Moments {
    float mean = 0.0F;
    float variance = 0.0F;
  };
  // Of the finite values; 0 without any.
  static Moments moments(std::span<const float> x) {
    double n = 0.0;
    double sum = 0.0;
    for (const float v : x) {
      if (!std::isfinite(v)) continue;
      n += 1.0;
      sum += static_cast<double>(v);
    }
    const double mean = n > 0.0 ? sum / n : 0.0;
    double squares = 0.0;
    for (const float v : x) {
      if (std::isfinite(v)) squares += (static_cast<double>(v) - mean) * (static_cast<double>(v) - mean);
    }
    return {static_cast<float>(mean), static_cast<float>(n > 0.0 ? squares / n : 0.0)};
  }

  float spread(std::int64_t b, std::int64_t h, std::int64_t block, std::int64_t document) const {
    const float* q = pooled_.q_mean(b, h, block);
    const float* variance = variances_ + ((b * pooled_.key_heads() + pooled_.key_head(h)) * documents_ + document) * pooled_.D();
    float sum = 0.0F;
    for (std::int64_t d = 0; d < pooled_.D(); ++d) sum += q[d] * q[d] * variance[d];
    constexpr float kLeast = 1e-6F;  // equal scores are no outliers
    return std::max(std::abs(pooled_.scale()) * std::sqrt(sum), kLeast);
  }

  PooledScores pooled_;
  const PlanGeometry& geometry_;
  std::int64_t blocks_;  // query blocks per query tile
  std::int64_t documents_;
  float* variances_;  // [B,Hk,documents,D] of key block means over the document's blocks
  float* scores_;     // per worker [blocks, ld]
};

}  // namespace

void Sol::validate() const {
  if (!std::isfinite(tau)) throw Error("config", "tau: expected a finite number, got " + std::to_string(tau));
}

TilePlan select(const TensorView& q, const TensorView& k, const PlanSpec& spec, const Sol& options, Workspace& ws) {
  options.validate();
  const PlanGeometry geometry = plan_geometry(q, k, spec);
  const std::int64_t block = geometry.tile_q % geometry.tile_k == 0 ? geometry.tile_k : geometry.tile_q;
  const Budget budget{Budget::Kind::threshold, options.tau};
  return select_rows(geometry, spec, {budget, options.neighbors, options.means, options.budgets}, ws, [&] {
    const PooledScores pooled(q, k, geometry, logit_scale(spec.scale, q.size(3)), {.queries = block}, ws);
    return SolScores(pooled, geometry, geometry.tile_q / block, ws);
  });
}

}  // namespace winnow
