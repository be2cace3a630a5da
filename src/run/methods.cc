#include "run/methods.h"

#include <algorithm>

#include "prep/block_kernels.h"
#include "run/static_plan.h"
#include "winnow/threads.h"

namespace winnow {

namespace {

template <class Options>
concept Selector = requires(const TensorView& x, const PlanSpec& spec, const Options& options, Workspace& ws) {
  { select(x, x, spec, options, ws) } -> std::same_as<TilePlan>;
};

// Every allocation may waste up to its alignment; no method makes more than this many per thread.
constexpr std::size_t kRounding = 64 * 16;

std::size_t plan_bytes(const PlanGeometry& geometry) {
  const std::int64_t words = (geometry.Gk() + 63) / 64;
  return static_cast<std::size_t>(geometry.rows() * (4 * geometry.Gk() + 8 * words + 8)) + kRounding;
}

std::size_t means_bytes(const PlanGeometry& geometry, std::int64_t D, std::int64_t key_heads, const Cells& cells) {
  const std::int64_t ld = padded(geometry.Gk());
  const std::int64_t queries = geometry.B * geometry.H * geometry.Gq() * cells.per_query_tile;
  const std::int64_t keys = geometry.B * key_heads * cells.per_key_tile * ld;
  const std::int64_t gates =
      geometry.B * (geometry.H * geometry.Gq() + key_heads * (geometry.Gk() + padded(D) + D) + geometry.H * padded(D));
  const std::int64_t per_thread = 4 * ld * (4 + 1 + 2 + cells.per_query_tile * cells.per_key_tile) + 12 * padded(D);
  return static_cast<std::size_t>(4 * D * (queries + keys) + 4 * (keys + gates) + num_threads() * per_thread) +
         static_cast<std::size_t>(num_threads() + 1) * kRounding;
}

std::size_t oracle_bytes(const PlanGeometry& geometry, std::int64_t D) {
  const std::int64_t tile_ld = padded(geometry.tile_k);
  const std::int64_t query_ld = padded(geometry.tile_q);
  const std::int64_t shared = geometry.Gk() * D * tile_ld + tile_ld + geometry.Gq() * geometry.Gk();
  const std::int64_t per_thread =
      3 * padded(geometry.Gk()) + geometry.tile_q * (D + tile_ld) + D + 2 * geometry.Gk() * query_ld + 3 * query_ld;
  return static_cast<std::size_t>(4 * (shared + num_threads() * per_thread)) + static_cast<std::size_t>(num_threads() + 1) * kRounding;
}

}  // namespace

bool selects_tiles(const Method& method) {
  return std::visit([]<class Options>(const Options&) { return Selector<Options> || std::is_same_v<Options, FixedPlan>; }, method);
}

Cells cells_of(const Method& method, const PlanGeometry& geometry) {
  const std::int64_t blocks = std::max(1, geometry.tile_q / geometry.tile_k);
  return std::visit(
      [&]<class Options>(const Options& options) -> Cells {
        if constexpr (requires { options.n_q; }) return {blocks * options.n_q, options.n_k};
        return {blocks, 1};
      },
      method);
}

std::optional<HeadBudgets> load_budgets(const Method& method) {
  return std::visit(
      []<class Options>(const Options& options) -> std::optional<HeadBudgets> {
        if constexpr (requires { options.budgets; }) {
          if (!options.budgets.empty()) return load_head_budgets(options.budgets);
        }
        return std::nullopt;
      },
      method);
}

double skip_softmax_share(std::int64_t granules_tested, std::int64_t granules_skipped) {
  if (granules_tested == 0) return 1.0;
  return 1.0 - 0.5 * static_cast<double>(granules_skipped) / static_cast<double>(granules_tested);
}

TilePlan make_plan(const TensorView& q, const TensorView& k, const PlanSpec& spec, const Method& method, Workspace& ws) {
  return std::visit(
      [&]<class Options>(const Options& options) {
        if constexpr (Selector<Options>) {
          return select(q, k, spec, options, ws);
        } else if constexpr (std::is_same_v<Options, FixedPlan>) {
          StaticPlan plan(options);
          plan.fit(q, k, spec);
          return std::move(plan).take();
        } else {
          return TilePlan::dense(plan_geometry(q, k, spec), DenseReason::none, &ws);
        }
      },
      method);
}

std::size_t plan_workspace_bytes(const TensorView& q, const TensorView& k, const PlanSpec& spec, const Method& method) {
  const PlanGeometry geometry = plan_geometry(q, k, spec);
  return std::visit(
      [&]<class Options>(const Options& options) {
        if constexpr (std::is_same_v<Options, Oracle>) return plan_bytes(geometry) + oracle_bytes(geometry, q.size(3));
        if constexpr (Selector<Options>) {
          return plan_bytes(geometry) + means_bytes(geometry, q.size(3), k.size(2), cells_of(options, geometry));
        }
        return static_cast<std::size_t>(4 * geometry.Gk()) + kRounding;
      },
      method);
}

}  // namespace winnow
