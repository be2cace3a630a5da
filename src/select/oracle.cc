// Selection by the true softmax mass, and how much of it a plan keeps.
#include <algorithm>
#include <cmath>
#include <string>

#include "core/text.h"
#include "core/threads.h"
#include "select/ranking.h"
#include "select/rows.h"
#include "select/spec.h"
#include "select/tile_mass.h"
#include "winnow/error.h"
#include "winnow/select/oracle.h"
#include "winnow/threads.h"
#include "winnow/workspace.h"

namespace winnow {

namespace {

// f(b, h, query tile, masses of its valid key tiles, worker), in parallel within a head.
template <class F>
void for_each_row(const TensorView& q, const TensorView& k, const PlanGeometry& geometry, float scale, Workspace& ws, F f) {
  if (geometry.rows() == 0) return;
  TileMass masses(q, k, geometry, scale, ws);
  for (std::int64_t b = 0; b < geometry.B; ++b) {
    const auto n = static_cast<std::size_t>(geometry.key_tiles(b));
    for (std::int64_t h = 0; h < geometry.H && n > 0; ++h) {
      const float* mass = masses.head(b, h);
      parallel_for(geometry.Gq(), [&](std::int64_t i, int worker) { f(b, h, i, std::span(mass + i * geometry.Gk(), n), worker); });
    }
  }
}

}  // namespace

void Oracle::validate() const { check_cdf_or_density(cdf, density); }

TilePlan select(const TensorView& q, const TensorView& k, const PlanSpec& spec, const Oracle& options, Workspace& ws) {
  options.validate();
  const PlanGeometry geometry = plan_geometry(q, k, spec);
  const Budget budget = options.density > 0.0F ? Budget{Budget::Kind::share, options.density} : Budget{Budget::Kind::mass, options.cdf};
  const RowPolicy policy{budget, options.neighbors, options.means, options.budgets};
  KeptTiles kept(geometry, ws);
  {
    const Workspace::Scope scratch(ws);
    RowChooser rows(geometry, spec, policy, kept, ws);
    for_each_row(q, k, geometry, logit_scale(spec.scale, q.size(3)), ws,
                 [&](std::int64_t b, std::int64_t h, std::int64_t i, std::span<const float> mass, int worker) {
                   rows.choose(b, h, i, mass, worker);
                 });
    rows.write_report();
  }
  return kept.plan(geometry, options.means ? Skipped::mean : Skipped::drop, ws);
}

Recall plan_recall(const TilePlan& plan, const TensorView& q, const TensorView& k, float scale, Workspace& ws) {
  const PlanGeometry& geometry = plan.geometry();
  PlanSpec spec;
  spec.tile_q = geometry.tile_q;
  spec.tile_k = geometry.tile_k;
  spec.mean_group = geometry.mean_group;
  spec.key_lengths = geometry.key_lengths;
  spec.query_layout = geometry.query_layout;
  spec.key_layout = geometry.key_layout;
  if (!(plan_geometry(q, k, spec) == geometry)) {
    throw Error("recall", "plan: expected one for q " + q.describe() + " and k " + k.describe() + ", got " + plan.describe());
  }
  if (std::isinf(scale)) throw Error("recall", "scale: expected a finite number, or NaN for 1/sqrt(D), got " + short_number(scale));
  const Workspace::Scope scratch(ws);
  struct RowRecall {
    double mass = 0.0;
    double set = -1.0;  // -1: the row keeps nothing
    bool valid = false;
  };
  auto* rows = ws.allocate<RowRecall>(static_cast<std::size_t>(geometry.rows()));
  std::fill_n(rows, geometry.rows(), RowRecall{});
  std::uint64_t* orders = ws.allocate<std::uint64_t>(static_cast<std::size_t>(num_threads() * geometry.Gk()));
  for_each_row(q, k, geometry, logit_scale(scale, q.size(3)), ws,
               [&](std::int64_t b, std::int64_t h, std::int64_t i, std::span<const float> mass, int worker) {
                 const std::int64_t row = geometry.row(b, h, i);
                 const std::span<std::uint64_t> order(orders + worker * geometry.Gk(), mass.size());
                 rank_tiles(mass, row_rules(geometry, b, i, false), order);
                 const std::span<const std::int32_t> lists[] = {plan.tiles(Tier::refine, row), plan.tiles(Tier::skim, row)};
                 const std::size_t size = lists[0].size() + lists[1].size();
                 const std::span<std::uint64_t> best = order.first(size);
                 std::ranges::sort(best);
                 double hits = 0.0;
                 RowRecall& out = rows[row];
                 for (const std::span<const std::int32_t>& list : lists) {
                   for (const std::int32_t tile : list) {
                     out.mass += static_cast<double>(mass[static_cast<std::size_t>(tile)]);
                     hits += std::ranges::binary_search(best, static_cast<std::uint64_t>(tile)) ? 1.0 : 0.0;
                   }
                 }
                 if (size > 0) out.set = hits / static_cast<double>(size);
                 out.valid = std::isfinite(out.mass);
               });
  Recall recall;
  double mass_weight = 0.0;
  double set_weight = 0.0;
  for (std::int64_t r = 0; r < geometry.rows(); ++r) {
    if (!rows[r].valid) continue;
    const auto queries = static_cast<double>(geometry.tile_queries(geometry.query_tile(r)));
    recall.mass += queries * rows[r].mass;
    mass_weight += queries;
    if (rows[r].set < 0.0) continue;
    recall.set += rows[r].set;
    set_weight += 1.0;
  }
  if (mass_weight > 0.0) recall.mass /= mass_weight;
  if (set_weight > 0.0) recall.set /= set_weight;
  return recall;
}

}  // namespace winnow
