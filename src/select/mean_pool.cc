// Mean-pooled block scores. Formula: include/winnow/select/mean_pool.h.
#include "winnow/select/mean_pool.h"

#include "select/pooled_scores.h"
#include "select/rows.h"
#include "select/spec.h"

namespace winnow {

void MeanPool::validate() const { check_cdf_or_density(density > 0.0F && cdf == kDefaultCdf ? 0.0F : cdf, density); }

TilePlan select(const TensorView& q, const TensorView& k, const PlanSpec& spec, const MeanPool& options, Workspace& ws) {
  options.validate();
  const PlanGeometry geometry = plan_geometry(q, k, spec);
  const Budget budget = options.density > 0.0F ? Budget{Budget::Kind::share, options.density} : Budget{Budget::Kind::log_mass, options.cdf};
  return select_rows(geometry, spec, {budget, options.neighbors, options.means, options.budgets}, ws, [&] {
    const PooledScores pooled(q, k, geometry, logit_scale(spec.scale, q.size(3)),
                              {.queries = geometry.tile_q, .widen_short = true, .add_log_counts = true}, ws);
    return [pooled, &geometry](std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end, int, float* out) {
      pooled.rows(b, h, begin, end, scored_tiles(geometry, b, begin, end), out);
    };
  });
}

}  // namespace winnow
