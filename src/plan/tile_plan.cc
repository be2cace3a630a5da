// TilePlan and PlanBuilder: storage, validity and derived quantities. plan_io.cc saves and loads.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "plan/storage.h"
#include "winnow/error.h"
#include "winnow/plan.h"
#include "winnow/workspace.h"

namespace winnow {

TilePlan::TilePlan() = default;
TilePlan::TilePlan(TilePlan&&) noexcept = default;
TilePlan& TilePlan::operator=(TilePlan&&) noexcept = default;
TilePlan::~TilePlan() = default;

const char* dense_reason_name(DenseReason reason) {
  switch (reason) {
    case DenseReason::none: return "none";
    case DenseReason::requested: return "requested";
    case DenseReason::skip_first_steps: return "skip_first_steps";
    case DenseReason::skip_first_layers: return "skip_first_layers";
    case DenseReason::min_seq_len: return "min_seq_len";
    case DenseReason::disabled_until_timestep: return "disabled_until_timestep";
    case DenseReason::missing_timestep: return "missing_timestep";
    case DenseReason::cross_attention: return "cross_attention";
    case DenseReason::skip_first_fraction: return "skip_first_fraction";
    case DenseReason::dense_layers: return "dense_layers";
  }
  return "unknown";
}

void PlanGeometry::validate() const {
  // Called for every plan: text is only made for an error.
  const auto refuse = [](const char* key, const std::string& expected, std::int64_t found) {
    throw Error("plan", std::string(key) + ": expected " + expected + ", got " + std::to_string(found));
  };
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;
  constexpr std::int64_t kMaxHeads = std::int64_t{1} << 20;
  constexpr std::int64_t kMaxKeyTiles = std::int64_t{1} << 30;
  constexpr std::int64_t kMaxRows = std::int64_t{1} << 40;  // row arithmetic stays far from overflow
  constexpr int kMaxTile = 65536;
  if (B < 0 || B > kMaxHeads) refuse("B", "0 to 2^20", B);
  if (H < 0 || H > kMaxHeads) refuse("H", "0 to 2^20", H);
  if (Sq < 0 || Sq > kMaxTokens) refuse("Sq", "0 to 2^40", Sq);
  if (Sk < 0 || Sk > kMaxTokens) refuse("Sk", "0 to 2^40", Sk);
  if (tile_q < 1 || tile_q > kMaxTile) refuse("tile_q", "1 to 65536", tile_q);
  if (tile_k < 1 || tile_k > kMaxTile) refuse("tile_k", "1 to 65536", tile_k);
  if (mean_group < 1 || tile_k % mean_group != 0) refuse("mean_group", "a divisor of tile_k " + std::to_string(tile_k), mean_group);
  if (Gk() > kMaxKeyTiles) refuse("key tiles", "at most 2^30", Gk());
  if (B * H > 0 && Gq() > kMaxRows / (B * H)) refuse("query tiles of B*H heads", "at most 2^40 in all", Gq());
  if (!key_lengths.empty() && static_cast<std::int64_t>(key_lengths.size()) != B) {
    refuse("key_lengths", std::to_string(B) + " entries", static_cast<std::int64_t>(key_lengths.size()));
  }
  for (const std::int64_t n : key_lengths) {
    if (n < 0 || n > Sk) refuse("key_lengths", "0 to " + std::to_string(Sk), n);
  }
}

TilePlan TilePlan::dense(const PlanGeometry& geometry, DenseReason reason, Workspace* ws) {
  geometry.validate();
  TilePlan plan;
  plan.geometry_ = geometry;
  plan.reason_ = reason;
  plan.identity_ = true;
  const auto n = static_cast<std::size_t>(geometry.Gk());
  std::int32_t* tiles = nullptr;
  if (ws != nullptr) {
    tiles = ws->allocate<std::int32_t>(n);
  } else {
    plan.storage_ = std::make_unique<Storage>();
    plan.storage_->tiles[0].resize(n);
    tiles = plan.storage_->tiles[0].data();
  }
  std::iota(tiles, tiles + n, 0);
  plan.refine_.tiles = {tiles, n};
  return plan;
}

void TilePlan::validate() const {
  geometry_.validate();
  if (identity_) return;
  const std::int64_t rows = geometry_.rows();
  const std::pair<const Lists*, const char*> all[] = {{&refine_, "refine"}, {&skim_, "skim"}, {&excluded_, "excluded"}};
  for (const auto& [lists, name] : all) {
    if (lists->offsets.empty()) {
      if (!lists->tiles.empty()) throw Error("plan", std::string(name) + ": tiles without offsets");
      continue;
    }
    if (static_cast<std::int64_t>(lists->offsets.size()) != rows + 1 || lists->offsets[0] != 0 ||
        lists->offsets.back() != static_cast<std::int64_t>(lists->tiles.size())) {
      throw Error("plan", std::string(name) + ".offsets: expected " + std::to_string(rows + 1) + " entries from 0 to " +
                              std::to_string(lists->tiles.size()));
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t begin = lists->offsets[static_cast<std::size_t>(r)];
      const std::int64_t end = lists->offsets[static_cast<std::size_t>(r) + 1];
      if (begin > end || end > static_cast<std::int64_t>(lists->tiles.size())) {
        throw Error("plan", std::string(name) + ".offsets: expected ascending, got " + std::to_string(begin) + " then " +
                                std::to_string(end) + " in row " + std::to_string(r));
      }
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t limit = geometry_.key_tiles(r / std::max<std::int64_t>(geometry_.H * geometry_.Gq(), 1));
    for (const auto& [lists, name] : all) {
      std::int64_t previous = -1;
      for (const std::int32_t tile : list(*lists, r)) {
        if (tile <= previous || tile >= (lists == &excluded_ ? geometry_.Gk() : limit)) {
          throw Error("plan", std::string(name) + " row " + std::to_string(r) + ": expected ascending tiles below " +
                                  std::to_string(limit) + ", got " + std::to_string(tile) + " after " + std::to_string(previous));
        }
        previous = tile;
      }
    }
    const auto disjoint = [&](std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
      for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
        if (a[i] == b[j]) throw Error("plan", "row " + std::to_string(r) + ": tile " + std::to_string(a[i]) + " is listed twice");
        if (a[i] < b[j])
          ++i;
        else
          ++j;
      }
    };
    disjoint(list(refine_, r), list(skim_, r));
    disjoint(list(refine_, r), list(excluded_, r));
    disjoint(list(skim_, r), list(excluded_, r));
  }
}

namespace {

// Valid keys of a tile in batch entry b.
std::int64_t tile_keys(const PlanGeometry& g, std::int64_t b, std::int64_t tile) {
  return std::clamp<std::int64_t>(g.keys(b) - tile * g.tile_k, 0, g.tile_k);
}
std::int64_t tile_queries(const PlanGeometry& g, std::int64_t query_tile) {
  return std::min<std::int64_t>(g.tile_q, g.Sq - query_tile * g.tile_q);
}
// Only trailing tiles can be ragged or empty, and lists ascend: O(1) for lists of whole tiles.
std::int64_t total_keys(const PlanGeometry& g, std::int64_t b, std::span<const std::int32_t> tiles) {
  auto n = static_cast<std::int64_t>(tiles.size()) * g.tile_k;
  for (auto tile = tiles.rbegin(); tile != tiles.rend(); ++tile) {
    const std::int64_t keys = tile_keys(g, b, *tile);
    if (keys == g.tile_k) break;
    n -= g.tile_k - keys;
  }
  return n;
}

// f(b, query_tile, row) for every row.
template <class F>
void for_each_row(const PlanGeometry& g, F f) {
  for (std::int64_t b = 0; b < g.B; ++b)
    for (std::int64_t h = 0; h < g.H; ++h)
      for (std::int64_t i = 0; i < g.Gq(); ++i) f(b, i, g.row(b, h, i));
}

}  // namespace

double TilePlan::tier_share(Tier tier) const {
  double computed = 0.0;
  double possible = 0.0;
  for_each_row(geometry_, [&](std::int64_t b, std::int64_t i, std::int64_t row) {
    const auto queries = static_cast<double>(tile_queries(geometry_, i));
    possible += queries * static_cast<double>(geometry_.keys(b) - total_keys(geometry_, b, excluded(row)));
    if (tier != Tier::skip) {
      computed += queries * static_cast<double>(total_keys(geometry_, b, tiles(tier, row)));
    } else {
      computed += queries * static_cast<double>(geometry_.keys(b) - total_keys(geometry_, b, excluded(row)) -
                                                total_keys(geometry_, b, tiles(Tier::skim, row)) -
                                                total_keys(geometry_, b, tiles(Tier::refine, row)));
    }
  });
  if (possible > 0.0) return computed / possible;
  return tier == Tier::refine ? 1.0 : 0.0;
}

double TilePlan::density() const {
  if (identity_) return 1.0;
  return tier_share(Tier::refine) + tier_share(Tier::skim);
}

double TilePlan::modelled_cost(const TierCosts& costs) const {
  double cost = 0.0;
  const double tile = geometry_.tile_k;
  for_each_row(geometry_, [&](std::int64_t b, std::int64_t, std::int64_t row) {
    const auto refine = static_cast<double>(tiles(Tier::refine, row).size());
    const auto skim = static_cast<double>(tiles(Tier::skim, row).size());
    cost += costs.refine * refine + costs.skim * skim;
    if (skipped_ == Skipped::mean) {
      const double rest = static_cast<double>(geometry_.key_tiles(b)) - refine - skim - static_cast<double>(excluded(row).size());
      if (rest > 0.0) {
        const double groups = static_cast<double>((geometry_.keys(b) + geometry_.mean_group - 1) / geometry_.mean_group);
        cost += costs.mean * groups / tile;
      }
    }
  });
  return cost;
}

TilePlan TilePlan::canonical() const {
  PlanBuilder builder(geometry_, skipped_);
  const std::int64_t rows = geometry_.rows();
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto i = static_cast<std::size_t>(r);
    builder.counts(Tier::refine)[i] = static_cast<std::int64_t>(tiles(Tier::refine, r).size());
    if (has_tier(Tier::skim)) builder.counts(Tier::skim)[i] = static_cast<std::int64_t>(tiles(Tier::skim, r).size());
    if (has_excluded()) builder.excluded_counts()[i] = static_cast<std::int64_t>(excluded(r).size());
  }
  builder.allocate();
  for (std::int64_t r = 0; r < rows; ++r) {
    std::ranges::copy(tiles(Tier::refine, r), builder.tiles(Tier::refine, r).begin());
    if (has_tier(Tier::skim)) std::ranges::copy(tiles(Tier::skim, r), builder.tiles(Tier::skim, r).begin());
    if (has_excluded()) std::ranges::copy(excluded(r), builder.excluded(r).begin());
  }
  TilePlan plan = std::move(builder).finish();
  plan.reason_ = reason_;
  return plan;
}

bool TilePlan::operator==(const TilePlan& other) const {
  if (!(geometry_ == other.geometry_) || skipped_ != other.skipped_) return false;
  for (std::int64_t r = 0; r < geometry_.rows(); ++r) {
    if (!std::ranges::equal(tiles(Tier::refine, r), other.tiles(Tier::refine, r)) ||
        !std::ranges::equal(tiles(Tier::skim, r), other.tiles(Tier::skim, r)) || !std::ranges::equal(excluded(r), other.excluded(r))) {
      return false;
    }
  }
  return true;
}

std::string TilePlan::describe() const {
  const PlanGeometry& g = geometry_;
  std::string text = "B=" + std::to_string(g.B) + " H=" + std::to_string(g.H) + " Sq=" + std::to_string(g.Sq) +
                     " Sk=" + std::to_string(g.Sk) + " tiles " + std::to_string(g.tile_q) + "x" + std::to_string(g.tile_k) + " density " +
                     std::to_string(density()) + (skipped_ == Skipped::mean ? " skipped=mean" : " skipped=drop");
  if (reason_ != DenseReason::none) text += std::string(" dense because of ") + dense_reason_name(reason_);
  return text;
}

// ---- PlanBuilder

namespace {
int index_of(Tier tier) {
  if (tier == Tier::skip) throw Error("plan", "tier skip has no list: leave the tile out");
  return tier == Tier::refine ? 0 : 1;
}
}  // namespace

PlanBuilder::PlanBuilder(PlanGeometry geometry, Skipped skipped, Workspace* ws)
    : geometry_(std::move(geometry)), skipped_(skipped), ws_(ws) {
  geometry_.validate();
  if (ws == nullptr) storage_ = std::make_unique<TilePlan::Storage>();
}
PlanBuilder::~PlanBuilder() = default;
PlanBuilder::PlanBuilder(PlanBuilder&&) noexcept = default;

std::span<std::int64_t> PlanBuilder::counts(int which) {
  if (allocated_) throw Error("plan", "counts after allocate()");
  const auto n = static_cast<std::size_t>(geometry_.rows() + 1);
  if (offsets_[which] == nullptr) {
    if (ws_ != nullptr) {
      offsets_[which] = ws_->allocate<std::int64_t>(n);
      std::fill_n(offsets_[which], n, 0);
    } else {
      storage_->offsets[which].assign(n, 0);
      offsets_[which] = storage_->offsets[which].data();
    }
  }
  return {offsets_[which] + 1, n - 1};
}

std::span<std::int32_t> PlanBuilder::row(int which, std::int64_t r) {
  if (!allocated_ || offsets_[which] == nullptr) throw Error("plan", "tiles before allocate(), or of a tier without counts");
  const std::int64_t begin = offsets_[which][r];
  return {tiles_[which] + begin, static_cast<std::size_t>(offsets_[which][r + 1] - begin)};
}

std::span<std::int64_t> PlanBuilder::counts(Tier tier) { return counts(index_of(tier)); }
std::span<std::int64_t> PlanBuilder::excluded_counts() { return counts(2); }
std::span<std::int32_t> PlanBuilder::tiles(Tier tier, std::int64_t row_index) { return row(index_of(tier), row_index); }
std::span<std::int32_t> PlanBuilder::excluded(std::int64_t row_index) { return row(2, row_index); }

void PlanBuilder::allocate() {
  if (allocated_) throw Error("plan", "allocate() twice");
  const std::int64_t rows = geometry_.rows();
  for (int which = 0; which < 3; ++which) {
    std::int64_t* offsets = offsets_[which];
    if (offsets == nullptr) continue;
    for (std::int64_t r = 0; r < rows; ++r) {
      if (offsets[r + 1] < 0 || offsets[r + 1] > geometry_.Gk()) {
        throw Error("plan", "count of row " + std::to_string(r) + ": expected 0 to " + std::to_string(geometry_.Gk()) + ", got " +
                                std::to_string(offsets[r + 1]));
      }
      offsets[r + 1] += offsets[r];
    }
    const auto n = static_cast<std::size_t>(offsets[rows]);
    if (ws_ != nullptr) {
      tiles_[which] = ws_->allocate<std::int32_t>(n);
    } else {
      storage_->tiles[which].resize(n);
      tiles_[which] = storage_->tiles[which].data();
    }
  }
  allocated_ = true;
}

TilePlan PlanBuilder::finish() && {
  if (!allocated_) throw Error("plan", "finish() before allocate()");
  TilePlan plan;
  plan.geometry_ = std::move(geometry_);
  plan.skipped_ = skipped_;
  TilePlan::Lists* lists[3] = {&plan.refine_, &plan.skim_, &plan.excluded_};
  const std::int64_t rows = plan.geometry_.rows();
  for (int which = 0; which < 3; ++which) {
    const std::int64_t* offsets = offsets_[which];
    if (offsets == nullptr) continue;
    for (std::int64_t r = 0; r < rows; ++r) {
      std::int32_t* begin = tiles_[which] + offsets[r];
      std::int32_t* end = tiles_[which] + offsets[r + 1];
      if (!std::is_sorted(begin, end)) std::sort(begin, end);
    }
    *lists[which] = {{offsets, static_cast<std::size_t>(rows + 1)}, {tiles_[which], static_cast<std::size_t>(offsets[rows])}};
  }
  plan.storage_ = std::move(storage_);
  plan.validate();
  return plan;
}

TilePlan PlanBuilder::from_rows(PlanGeometry geometry, Skipped skipped, const std::vector<std::vector<std::int32_t>>& refine,
                                const std::vector<std::vector<std::int32_t>>& skim,
                                const std::vector<std::vector<std::int32_t>>& excluded) {
  geometry.validate();  // rows() divides by the tile size
  const auto rows = static_cast<std::size_t>(geometry.rows());
  PlanBuilder builder(std::move(geometry), skipped);
  const std::vector<std::vector<std::int32_t>>* all[3] = {&refine, &skim, &excluded};
  for (int which = 0; which < 3; ++which) {
    if (all[which]->empty() && which != 0) continue;
    if (all[which]->size() != rows) {
      throw Error("plan", "from_rows: expected " + std::to_string(rows) + " rows, got " + std::to_string(all[which]->size()));
    }
    const auto counts = builder.counts(which);
    for (std::size_t r = 0; r < rows; ++r) counts[r] = static_cast<std::int64_t>((*all[which])[r].size());
  }
  builder.allocate();
  for (int which = 0; which < 3; ++which) {
    if (all[which]->empty()) continue;
    for (std::size_t r = 0; r < rows; ++r) std::ranges::copy((*all[which])[r], builder.row(which, static_cast<std::int64_t>(r)).begin());
  }
  return std::move(builder).finish();
}

}  // namespace winnow
