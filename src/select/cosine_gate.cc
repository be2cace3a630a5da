// Mean-pooled block scores behind a self-similarity gate. Formula: include/winnow/select/cosine_gate.h.
#include "winnow/select/cosine_gate.h"

#include <algorithm>
#include <limits>

#include "core/text.h"
#include "prep/block_stats.h"
#include "select/pooled_scores.h"
#include "select/rows.h"
#include "select/spec.h"
#include "winnow/error.h"

namespace winnow {

namespace {

std::int64_t gated_candidates(const PlanGeometry& geometry, std::int64_t b, std::int64_t query_tile, const float* similarity, float theta) {
  const TileRange range = geometry.candidates(b, query_tile);
  return std::count_if(similarity + range.begin, similarity + range.end, [theta](float x) { return !(x > theta); });
}

// Gated blocks get scores that are not finite: rank_tiles() then takes them first, and no mass counts them.
void gate_blocks(const TensorView& q, const TensorView& k, const PlanGeometry& geometry, float theta, const PooledScores& pooled,
                 SelectReport* report, Workspace& ws) {
  constexpr float kUnknown = std::numeric_limits<float>::quiet_NaN();
  const Workspace::Scope scratch(ws);
  const float* queries = self_similarity(q, query_blocks(geometry), Smoothing::none, ws);  // [B,H,Gq]
  const float* keys = self_similarity(k, key_blocks(geometry), Smoothing::mean, ws);       // [B,Hk,Gk]
  for (std::int64_t b = 0; b < geometry.B; ++b) {
    const std::int64_t tiles = geometry.key_tiles(b);
    for (std::int64_t h = 0; h < geometry.H; ++h) {
      const std::int64_t head = pooled.key_head(h);
      const float* sim = keys + (b * k.size(2) + head) * geometry.Gk();
      for (std::int64_t j = 0; j < tiles; ++j) {
        if (!(sim[j] > theta)) pooled.bias(b, head)[j] = kUnknown;
      }
      for (std::int64_t i = 0; i < geometry.Gq(); ++i) {
        const bool all = !(queries[(b * geometry.H + h) * geometry.Gq() + i] > theta);
        if (all) *pooled.q_mean(b, h, i) = kUnknown;
        if (report != nullptr) report->gated += all ? geometry.candidates(b, i).size() : gated_candidates(geometry, b, i, sim, theta);
      }
    }
  }
}

}  // namespace

void CosineGate::validate() const {
  if (!(theta >= -1.0F && theta <= 1.0F)) throw Error("config", "theta: expected a number in [-1,1], got " + short_number(theta));
  check_cdf_or_density(cdf, 0.0F);
}

TilePlan select(const TensorView& q, const TensorView& k, const PlanSpec& spec, const CosineGate& options, Workspace& ws) {
  options.validate();
  const PlanGeometry geometry = plan_geometry(q, k, spec);
  const Budget budget{Budget::Kind::log_mass, options.cdf};
  return select_rows(geometry, spec, {budget, options.neighbors, options.means, options.budgets}, ws, [&] {
    const PooledScores pooled(q, k, geometry, logit_scale(spec.scale, q.size(3)),
                              {.queries = geometry.tile_q, .widen_short = true, .add_log_counts = true}, ws);
    gate_blocks(q, k, geometry, options.theta, pooled, spec.report, ws);
    return [pooled, &geometry](std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end, int, float* out) {
      pooled.rows(b, h, begin, end, scored_tiles(geometry, b, begin, end), out);
    };
  });
}

}  // namespace winnow
