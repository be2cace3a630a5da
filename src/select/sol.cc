// Thresholds on block scores. Formula: include/winnow/select/sol.h.
#include "winnow/select/sol.h"

#include <cmath>
#include <limits>

#include "core/text.h"
#include "select/pooled_scores.h"
#include "select/rows.h"
#include "select/spec.h"
#include "winnow/error.h"

namespace winnow {

namespace {

// How far each key tile's score lies above its row's mean, in standard deviations.
class SolScores {
 public:
  SolScores(const PooledScores& pooled, const PlanGeometry& geometry, std::int64_t blocks, bool exact_spread, Workspace& ws)
      : pooled_(pooled),
        geometry_(geometry),
        blocks_(blocks),
        documents_(geometry.key_layout ? geometry.key_layout->documents() : 1),
        scores_(ws.allocate<float>(static_cast<std::size_t>(num_threads() * blocks * pooled.ld()))) {
    if (!exact_spread) variances_ = channel_variances(ws);
  }

  void operator()(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end, int worker, float* out) const {
    float* const scores = scores_ + worker * blocks_ * pooled_.ld();
    for (std::int64_t i = begin; i < end; ++i, out += pooled_.ld()) {
      const std::int64_t first = i * blocks_;
      const std::int64_t last = first + pooled_.query_blocks(geometry_, i);
      const TileRange candidates = geometry_.candidates(b, i);
      pooled_.rows(b, h, first, last, scored_tiles(geometry_, b, i, i + 1), scores);
      const std::int64_t document = documents_ > 1 ? geometry_.query_layout->document(i) : 0;
      for (std::int64_t block = first; block < last; ++block) {
        const float* const row = scores + (block - first) * pooled_.ld();
        const Moments own = moments({row + candidates.begin, static_cast<std::size_t>(candidates.size())});
        constexpr float kUnknown = std::numeric_limits<float>::quiet_NaN();
        constexpr float kLeast = 1e-6F;  // equal scores are no outliers
        const float deviation = std::max(variances_ != nullptr ? spread(b, h, block, document) : std::sqrt(own.variance), kLeast);
        for (std::int64_t j = candidates.begin; j < candidates.end; ++j) {
          const float z = std::isfinite(row[j]) ? (row[j] - own.mean) / deviation : kUnknown;
          out[j] = block == first || !(z <= out[j]) ? z : out[j];  // an unknown one stays
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

  const float* channel_variances(Workspace& ws) const {
    const std::int64_t D = pooled_.D();
    const std::int64_t n = geometry_.B * pooled_.key_heads() * documents_;
    auto* variances = ws.allocate<float>(static_cast<std::size_t>(n * D));
    const Workspace::Scope scratch(ws);
    auto* const columns = ws.allocate<float>(static_cast<std::size_t>(num_threads() * pooled_.ld()));
    parallel_for(n, [&](std::int64_t i, int worker) {
      const std::int64_t head = i / documents_;  // b*Hk + key head
      const TileRange tiles = geometry_.key_layout ? geometry_.key_layout->document_tiles(i % documents_)
                                                   : TileRange{0, geometry_.key_tiles(head / pooled_.key_heads())};
      const float* const means = pooled_.key_head_means(head);
      float* const row = columns + worker * pooled_.ld();
      for (std::int64_t d = 0; d < D; ++d) {
        for (std::int64_t j = tiles.begin; j < tiles.end; ++j) row[j - tiles.begin] = means[in_panels(j, d, D)];
        variances[i * D + d] = moments({row, static_cast<std::size_t>(tiles.size())}).variance;
      }
    });
    return variances;
  }

  float spread(std::int64_t b, std::int64_t h, std::int64_t block, std::int64_t document) const {
    const float* q = pooled_.q_mean(b, h, block);
    const float* variance = variances_ + ((b * pooled_.key_heads() + pooled_.key_head(h)) * documents_ + document) * pooled_.D();
    float sum = 0.0F;
    for (std::int64_t d = 0; d < pooled_.D(); ++d) sum += q[d] * q[d] * variance[d];
    return std::abs(pooled_.scale()) * std::sqrt(sum);
  }

  PooledScores pooled_;
  const PlanGeometry& geometry_;
  std::int64_t blocks_;  // query blocks per query tile
  std::int64_t documents_;
  const float* variances_ = nullptr;  // [B,Hk,documents,D] of key block means over the document's blocks; null: of the row's scores
  float* scores_;                     // per worker [blocks, ld]
};

}  // namespace

void Sol::validate() const {
  if (!std::isfinite(tau)) throw Error("config", "tau: expected a finite number, got " + short_number(tau));
}

TilePlan select(const TensorView& q, const TensorView& k, const PlanSpec& spec, const Sol& options, Workspace& ws) {
  options.validate();
  const PlanGeometry geometry = plan_geometry(q, k, spec);
  const std::int64_t block = geometry.tile_q % geometry.tile_k == 0 ? geometry.tile_k : geometry.tile_q;
  const Budget budget{Budget::Kind::threshold, options.tau};
  return select_rows(geometry, spec, {budget, options.neighbors, options.means, options.budgets}, ws, [&] {
    const PooledScores pooled(q, k, geometry, logit_scale(spec.scale, q.size(3)), {.queries = block}, ws);
    return SolScores(pooled, geometry, geometry.tile_q / block, options.exact_spread, ws);
  });
}

}  // namespace winnow
