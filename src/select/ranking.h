// From one row's scores to the set of tiles that it keeps: order, ties, budgets. Shared by every selector.
#pragma once

#include <cstdint>
#include <span>

#include "winnow/plan.h"
#include "winnow/select.h"

namespace winnow {

class Workspace;

// What the plan asks of one row, whatever its scores.
struct RowRules {
  TileRange candidates;                     // the key tiles that it may take; the others do not exist for it
  TileRange neighbors;                      // candidates that it takes in any case: those within one tile of its own positions
  const TokenLayout* exact_keys = nullptr;  // null: no tile of its document is exact
  // Every candidate that it takes in any case: neighbors, exact tiles.
  bool forced(std::int64_t tile) const { return neighbors.contains(tile) || (exact_keys != nullptr && exact_keys->exact(tile)); }
};
// `neighbors` asks for those; they exist only where queries and keys are the same tokens (Sq == Sk). With a layout they are those
// within one tile in its order. All candidates of an exact query tile are its neighbors.
RowRules row_rules(const PlanGeometry& geometry, std::int64_t b, std::int64_t query_tile, bool neighbors);

// Puts a row's candidates in the order in which it takes them: forced ones (by the rules, and those whose score is not finite),
// then by descending score; equal scores by ascending bit-reversed index over ceil(log2 n) bits, both counted within the n candidates,
// which favours neither end of the sequence. `order` has room for all candidates and receives tile indices. Returns how many are forced.
std::int64_t rank_tiles(std::span<const float> scores, const RowRules& rules, std::span<std::uint64_t> order);

// The two halves of rank_tiles(), for budgets that do not depend on scores: a sort key per candidate (how many are forced is
// returned), and the tiles of the `count` smallest keys, in any order, at the front of `keys`.
std::int64_t rank_keys(std::span<const float> scores, const RowRules& rules, std::span<std::uint64_t> keys);
void first_tiles(const RowRules& rules, std::int64_t count, std::span<std::uint64_t> keys);

// How many tiles of `order` to take so that their mass reaches cdf times the total over the candidates: at least the forced ones
// and at least one; cdf >= 1 takes all. The total is a f32 sum in index order, the running sum one in the order taken.
// Masses that are not finite count as 0.
std::int64_t count_for_mass(std::span<const float> mass, TileRange candidates, std::span<const std::uint64_t> order, std::int64_t forced,
                            float cdf);

// `count` rounded up to a multiple of `granularity`, at most n.
std::int64_t snap(std::int64_t count, int granularity, std::int64_t n);

// One bit per (plan row, key tile). Rows may be filled in parallel.
class KeptTiles {
 public:
  KeptTiles(const PlanGeometry& geometry, Workspace& ws);
  void keep(std::int64_t row, std::span<const std::uint64_t> tiles);
  // A plan whose memory comes from `ws`.
  TilePlan plan(const PlanGeometry& geometry, Skipped skipped, Workspace& ws) const;

 private:
  std::int64_t words_per_row_;
  std::uint64_t* words_;
};

}  // namespace winnow
