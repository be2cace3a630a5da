// TilePlan: which key tiles every query tile computes, and in which tier. The one thing that selectors write and
// executors read. Plain integers, immutable, always valid once built.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "winnow/token_layout.h"

namespace winnow {

class SafetensorsFile;
class Workspace;

// What a key tile's keys are computed in. What a tier means in operands is the executor's business:
// on a bf16 CPU executor both compute exactly as refine does unless its record says otherwise.
enum class Tier : std::uint8_t { skip, skim, refine };

// What happens to tiles that a row neither lists nor excludes.
enum class Skipped : std::uint8_t {
  drop,  // they do not exist for the row
  mean,  // each mean_group of their keys is one virtual key: its mean k and v, with ln(count) added to the logit
};

// Why a call runs dense. `none` is a plan made by a selector.
enum class DenseReason : std::uint8_t {
  none,
  requested,
  skip_first_steps,
  skip_first_layers,
  min_seq_len,
  disabled_until_timestep,
  missing_timestep,
  cross_attention,
  skip_first_fraction,
  dense_layers,
  unknown_positions,
  break_even,
};
inline constexpr int kNumDenseReasons = 12;
const char* dense_reason_name(DenseReason reason);  // "skip_first_steps"

// What turns tokens into tiles: sizes, and a layout where tiles are not simply runs of the sequence. Only the last tile of a
// document may be short then, or any if a layout says so.
struct PlanGeometry {
  std::int64_t B = 1;
  std::int64_t H = 1;  // query heads; plans have one row list per query head, also under GQA
  std::int64_t Sq = 0;
  std::int64_t Sk = 0;
  int tile_q = 128;
  int tile_k = 64;
  int mean_group = 64;  // keys per virtual key; divides tile_k
  // Valid keys per batch entry, or empty: Sk everywhere. Keys past it take no part (not even as means). Empty with a layout.
  std::vector<std::int64_t> key_lengths = {};
  // Null: tile t is tokens [t*tile, (t+1)*tile), all of one document. Both have the same number of documents.
  std::shared_ptr<const TokenLayout> query_layout = {};
  std::shared_ptr<const TokenLayout> key_layout = {};

  std::int64_t Gq() const { return query_layout ? query_layout->tiles() : (Sq + tile_q - 1) / tile_q; }
  std::int64_t Gk() const { return key_layout ? key_layout->tiles() : (Sk + tile_k - 1) / tile_k; }
  std::int64_t rows() const { return B * H * Gq(); }
  std::int64_t row(std::int64_t b, std::int64_t h, std::int64_t query_tile) const { return (b * H + h) * Gq() + query_tile; }
  std::int64_t query_tile(std::int64_t row) const { return row % Gq(); }
  std::int64_t batch(std::int64_t row) const { return row / (H * Gq()); }
  // Keys that take part.
  std::int64_t keys(std::int64_t b) const {
    if (key_layout) return key_layout->begin(key_layout->tiles());
    return key_lengths.empty() ? Sk : key_lengths[static_cast<std::size_t>(b)];
  }
  // Key tiles with at least one valid key.
  std::int64_t key_tiles(std::int64_t b) const { return key_layout ? key_layout->tiles() : (keys(b) + tile_k - 1) / tile_k; }
  // The key tiles that a query tile may attend to: those of its document. The others do not exist for it.
  TileRange candidates(std::int64_t b, std::int64_t query_tile) const {
    if (!key_layout || key_layout->documents() == 1) return {0, key_tiles(b)};
    return key_layout->document_tiles(query_layout->document(query_tile));
  }
  // Where a tile's tokens begin, in positions (tokens if there is no layout), and how many they are. Tiles up to Gq() and Gk().
  std::int64_t query_begin(std::int64_t tile) const { return query_layout ? query_layout->begin(tile) : std::min(tile * tile_q, Sq); }
  std::int64_t tile_queries(std::int64_t tile) const { return query_begin(tile + 1) - query_begin(tile); }
  std::int64_t key_begin(std::int64_t b, std::int64_t tile) const {
    return key_layout ? key_layout->begin(tile) : std::min(tile * tile_k, keys(b));
  }
  std::int64_t tile_keys(std::int64_t b, std::int64_t tile) const { return key_begin(b, tile + 1) - key_begin(b, tile); }
  // Position -> token, or null: they are the same.
  const std::int32_t* query_tokens() const { return query_layout ? query_layout->tokens() : nullptr; }
  const std::int32_t* key_tokens() const { return key_layout ? key_layout->tokens() : nullptr; }
  // Query-key pairs of all heads and batch entries that dense attention computes.
  double pairs() const;

  void validate() const;                             // throws Error
  bool operator==(const PlanGeometry& other) const;  // layouts by content
};

// Relative prices of one key tile, in units of one refine tile; from a machine profile.
struct TierCosts {
  double refine = 1.0;
  double skim = 1.0;
  double mean = 1.0;  // of tile_k virtual keys
};

class TilePlan {
 public:
  // Every candidate of every row in tier refine. O(Gk) memory, from `ws` or owned if null.
  static TilePlan dense(const PlanGeometry& geometry, DenseReason reason, Workspace* ws = nullptr);

  TilePlan(TilePlan&&) noexcept;
  TilePlan& operator=(TilePlan&&) noexcept;
  ~TilePlan();

  const PlanGeometry& geometry() const { return geometry_; }
  Skipped skipped() const { return skipped_; }
  DenseReason reason() const { return reason_; }
  // True for dense(): rows share one list. A list-form plan that happens to keep everything is not identity.
  bool is_identity() const { return identity_; }

  // Ascending key tiles of a row. tier is skim or refine.
  std::span<const std::int32_t> tiles(Tier tier, std::int64_t row) const { return list(tier == Tier::refine ? refine_ : skim_, row); }
  // Ascending candidates that are neither computed nor represented. Tiles of other documents are no candidates and never here.
  std::span<const std::int32_t> excluded(std::int64_t row) const { return list(excluded_, row); }
  bool has_tier(Tier tier) const { return identity_ ? tier == Tier::refine : !(tier == Tier::refine ? refine_ : skim_).tiles.empty(); }
  bool has_excluded() const { return !excluded_.tiles.empty(); }

  // The functions below walk the whole plan.
  // Share of the query-key pairs, not counting excluded ones, that are computed in skim or refine. 1 if there are none.
  double density() const;
  // Share of those pairs in one tier (skip: everything not computed).
  double tier_share(Tier tier) const;
  // Sum over rows of tile prices, virtual keys included, in units of one refine tile.
  double modelled_cost(const TierCosts& costs = {}) const;
  // Throws Error at the first list that is unsorted or repeats a tile, has one that is no candidate of its row or is in another
  // list of it, and at the first row that lacks an exact tile (see TokenLayout) in tier refine.
  void validate() const;
  // Deep copy in list form that owns its memory; equal plans have equal canonical forms.
  TilePlan canonical() const;
  bool operator==(const TilePlan& other) const;  // same geometry, policy and lists, in canonical form
  std::string describe() const;                  // one line: geometry, density, policy, reason

  // Safetensors file: offsets and tiles of each tier, geometry in its metadata. See docs/plan-format.md.
  // Throws Error; load() accepts nothing that validate() would refuse, and keeps the reason of a dense plan. A failed save
  // leaves no file.
  void save(const std::string& path) const;
  static TilePlan load(const std::string& path);
  static TilePlan load(std::span<const std::byte> bytes, const std::string& name);

 private:
  friend class PlanBuilder;
  struct Lists {
    std::span<const std::int64_t> offsets;  // rows + 1, or empty: no list in any row
    std::span<const std::int32_t> tiles;
  };
  struct Storage;
  TilePlan();
  static TilePlan read(const SafetensorsFile& file);
  void check_exact(std::int64_t row) const;

  std::span<const std::int32_t> list(const Lists& lists, std::int64_t row) const {
    if (identity_ && &lists == &refine_) {
      const TileRange all = geometry_.candidates(geometry_.batch(row), geometry_.query_tile(row));
      return refine_.tiles.subspan(static_cast<std::size_t>(all.begin), static_cast<std::size_t>(all.size()));
    }
    if (lists.offsets.empty()) return {};
    const auto r = static_cast<std::size_t>(row);
    return lists.tiles.subspan(static_cast<std::size_t>(lists.offsets[r]),
                               static_cast<std::size_t>(lists.offsets[r + 1] - lists.offsets[r]));
  }

  PlanGeometry geometry_;
  Skipped skipped_ = Skipped::drop;
  DenseReason reason_ = DenseReason::none;
  bool identity_ = false;
  Lists refine_, skim_, excluded_;
  std::unique_ptr<Storage> storage_;  // null: memory belongs to a Workspace and lives as long as its scope
};

// Builds a plan in two passes: set the number of tiles per row, then fill each row's span (rows may be filled in parallel).
// With a workspace and no key_lengths, nothing is allocated from the heap.
//   PlanBuilder b(geometry, Skipped::mean, &ws);
//   b.counts(Tier::refine)[row] = n;   for all rows
//   b.allocate();
//   b.tiles(Tier::refine, row)[0..n) = ascending tiles
//   TilePlan plan = std::move(b).finish();
class PlanBuilder {
 public:
  // Memory comes from `ws`, or is owned by the plan if null.
  PlanBuilder(PlanGeometry geometry, Skipped skipped, Workspace* ws = nullptr);
  ~PlanBuilder();
  PlanBuilder(PlanBuilder&&) noexcept;

  // rows() counters, zero at first. Only the tiers that are asked for are stored.
  std::span<std::int64_t> counts(Tier tier);
  std::span<std::int64_t> excluded_counts();
  void allocate();
  std::span<std::int32_t> tiles(Tier tier, std::int64_t row);
  std::span<std::int32_t> excluded(std::int64_t row);
  // Sorts each row, validates, and returns the plan. Throws Error if a list is invalid.
  TilePlan finish() &&;

  // A plan from explicit rows, for tests and importers: refine[row] (and skim, excluded, which may be empty).
  static TilePlan from_rows(PlanGeometry geometry, Skipped skipped, const std::vector<std::vector<std::int32_t>>& refine,
                            const std::vector<std::vector<std::int32_t>>& skim = {},
                            const std::vector<std::vector<std::int32_t>>& excluded = {});

 private:
  std::span<std::int64_t> counts(int which);
  std::span<std::int32_t> row(int which, std::int64_t r);

  PlanGeometry geometry_;
  Skipped skipped_ = Skipped::drop;
  Workspace* ws_ = nullptr;
  std::unique_ptr<TilePlan::Storage> storage_;  // null with a workspace
  // Index 0 refine, 1 skim, 2 excluded. counts become offsets shifted by one: entry r+1 belongs to row r.
  std::int64_t* offsets_[3] = {};
  std::int32_t* tiles_[3] = {};
  bool allocated_ = false;
};

}  // namespace winnow
