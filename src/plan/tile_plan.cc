// TilePlan and PlanBuilder: storage, validity and derived quantities. plan_io.cc saves and loads.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/text.h"
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
    case DenseReason::unknown_positions: return "unknown_positions";
    case DenseReason::break_even: return "break_even";
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
  const auto documents = [](const std::shared_ptr<const TokenLayout>& layout) { return layout ? layout->documents() : 1; };
  if (query_layout) {
    if (query_layout->num_tokens() != Sq) refuse("query_layout", std::to_string(Sq) + " tokens", query_layout->num_tokens());
    if (query_layout->largest_tile() > tile_q) {
      refuse("query_layout", "tiles of at most " + std::to_string(tile_q) + " tokens", query_layout->largest_tile());
    }
  }
  if (key_layout) {
    if (key_layout->num_tokens() != Sk) refuse("key_layout", std::to_string(Sk) + " tokens", key_layout->num_tokens());
    if (key_layout->largest_tile() > tile_k) {
      refuse("key_layout", "tiles of at most " + std::to_string(tile_k) + " tokens", key_layout->largest_tile());
    }
  }
  if (documents(query_layout) != documents(key_layout)) {
    refuse("key_layout", std::to_string(documents(query_layout)) + " documents as in query_layout", documents(key_layout));
  }
  if ((query_layout || key_layout) && !key_lengths.empty()) {
    refuse("key_lengths", "none with a layout, which leaves out what takes no part", static_cast<std::int64_t>(key_lengths.size()));
  }
}

double PlanGeometry::pairs() const {
  double pairs = 0.0;
  for (std::int64_t b = 0; b < B; ++b) {
    if (!query_layout) {
      pairs += static_cast<double>(Sq) * static_cast<double>(keys(b));
      continue;
    }
    for (std::int64_t i = 0; i < Gq(); ++i) {
      const TileRange range = candidates(b, i);
      pairs += static_cast<double>(tile_queries(i)) * static_cast<double>(key_begin(b, range.end) - key_begin(b, range.begin));
    }
  }
  return pairs * static_cast<double>(H);
}

bool PlanGeometry::operator==(const PlanGeometry& other) const {
  const auto same = [](const std::shared_ptr<const TokenLayout>& a, const std::shared_ptr<const TokenLayout>& b) {
    return a == b || (a && b && *a == *b);
  };
  return B == other.B && H == other.H && Sq == other.Sq && Sk == other.Sk && tile_q == other.tile_q && tile_k == other.tile_k &&
         mean_group == other.mean_group && key_lengths == other.key_lengths && same(query_layout, other.query_layout) &&
         same(key_layout, other.key_layout);
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
    const TileRange candidates = geometry_.candidates(geometry_.batch(r), geometry_.query_tile(r));
    // Padding tiles past key_lengths may be excluded too.
    const TileRange may_be_excluded = geometry_.key_layout ? candidates : TileRange{0, geometry_.Gk()};
    for (const auto& [lists, name] : all) {
      const TileRange& range = lists == &excluded_ ? may_be_excluded : candidates;
      std::int64_t previous = -1;
      for (const std::int32_t tile : list(*lists, r)) {
        if (tile <= previous || !range.contains(tile)) {
          throw Error("plan", std::string(name) + " row " + std::to_string(r) + ": expected ascending tiles from " +
                                  std::to_string(range.begin) + " to " + std::to_string(range.end - 1) + ", got " + std::to_string(tile) +
                                  " after " + std::to_string(previous));
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
    check_exact(r);
  }
}

void TilePlan::check_exact(std::int64_t row) const {
  const TokenLayout* keys = geometry_.key_layout.get();
  const TokenLayout* queries = geometry_.query_layout.get();
  const std::int64_t i = geometry_.query_tile(row);
  const auto refine = list(refine_, row);
  std::int64_t expected = 0;
  std::int64_t found = 0;
  if (queries != nullptr && queries->exact(i)) {
    expected = geometry_.candidates(geometry_.batch(row), i).size();
    found = static_cast<std::int64_t>(refine.size());
  } else if (keys != nullptr) {
    expected = keys->exact_tiles(queries != nullptr ? queries->document(i) : 0);
    if (expected > 0) found = std::ranges::count_if(refine, [&](std::int32_t tile) { return keys->exact(tile); });
  }
  if (found != expected) {
    throw Error("plan", "refine row " + std::to_string(row) + ": expected all " + std::to_string(expected) + " exact tiles, got " +
                            std::to_string(found));
  }
}

namespace {

// O(1) for lists of whole tiles if only trailing tiles can be short or empty, since lists ascend.
std::int64_t total_keys(const PlanGeometry& g, std::int64_t b, std::span<const std::int32_t> tiles) {
  if (g.key_layout) {
    std::int64_t n = 0;
    for (const std::int32_t tile : tiles) n += g.tile_keys(b, tile);
    return n;
  }
  auto n = static_cast<std::int64_t>(tiles.size()) * g.tile_k;
  for (auto tile = tiles.rbegin(); tile != tiles.rend(); ++tile) {
    const std::int64_t keys = g.tile_keys(b, *tile);
    if (keys == g.tile_k) break;
    n -= g.tile_k - keys;
  }
  return n;
}

// One per mean_group keys of every tile.
std::int64_t virtual_keys(const PlanGeometry& g, std::int64_t b, TileRange tiles) {
  if (!g.key_layout) return (g.keys(b) + g.mean_group - 1) / g.mean_group;
  std::int64_t n = 0;
  for (std::int64_t t = tiles.begin; t < tiles.end; ++t) n += (g.tile_keys(b, t) + g.mean_group - 1) / g.mean_group;
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
    const auto queries = static_cast<double>(geometry_.tile_queries(i));
    const TileRange candidates = geometry_.candidates(b, i);
    const std::int64_t keys = geometry_.key_begin(b, candidates.end) - geometry_.key_begin(b, candidates.begin);
    possible += queries * static_cast<double>(keys - total_keys(geometry_, b, excluded(row)));
    if (tier != Tier::skip) {
      computed += queries * static_cast<double>(total_keys(geometry_, b, tiles(tier, row)));
    } else {
      computed +=
          queries * static_cast<double>(keys - total_keys(geometry_, b, excluded(row)) - total_keys(geometry_, b, tiles(Tier::skim, row)) -
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
  for_each_row(geometry_, [&](std::int64_t b, std::int64_t i, std::int64_t row) {
    const auto refine = static_cast<double>(tiles(Tier::refine, row).size());
    const auto skim = static_cast<double>(tiles(Tier::skim, row).size());
    cost += costs.refine * refine + costs.skim * skim;
    if (skipped_ == Skipped::mean) {
      const TileRange candidates = geometry_.candidates(b, i);
      const double rest = static_cast<double>(candidates.size()) - refine - skim - static_cast<double>(excluded(row).size());
      if (rest > 0.0) cost += costs.mean * static_cast<double>(virtual_keys(geometry_, b, candidates)) / tile;
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
                     short_number(static_cast<float>(density())) + (skipped_ == Skipped::mean ? " skipped=mean" : " skipped=drop");
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
  if (r < 0 || r >= geometry_.rows()) {
    throw Error("plan", "row: expected 0 to " + std::to_string(geometry_.rows() - 1) + ", got " + std::to_string(r));
  }
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
