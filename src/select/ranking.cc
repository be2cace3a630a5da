#include "select/ranking.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "core/threads.h"
#include "winnow/workspace.h"

namespace winnow {

namespace {

std::uint32_t reverse_bits(std::uint32_t x) {
  x = ((x >> 1U) & 0x55555555U) | ((x & 0x55555555U) << 1U);
  x = ((x >> 2U) & 0x33333333U) | ((x & 0x33333333U) << 2U);
  x = ((x >> 4U) & 0x0F0F0F0FU) | ((x & 0x0F0F0F0FU) << 4U);
  x = ((x >> 8U) & 0x00FF00FFU) | ((x & 0x00FF00FFU) << 8U);
  return (x >> 16U) | (x << 16U);
}

constexpr unsigned kIndexBits = 30;

// Bit-reversed indices below n, over ceil(log2 n) bits; its own inverse.
class ReversedIndex {
 public:
  explicit ReversedIndex(std::int64_t n) : bits_(n <= 1 ? 0U : static_cast<unsigned>(std::bit_width(static_cast<std::uint32_t>(n - 1)))) {}
  std::uint32_t operator()(std::uint32_t index) const { return bits_ == 0 ? 0U : reverse_bits(index) >> (32U - bits_); }

 private:
  unsigned bits_;
};

void keys_to_tiles(const RowRules& rules, std::span<std::uint64_t> keys) {
  const ReversedIndex reversed(rules.candidates.size());
  const auto begin = static_cast<std::uint64_t>(rules.candidates.begin);
  for (std::uint64_t& key : keys) key = begin + reversed(static_cast<std::uint32_t>(key & ((1U << kIndexBits) - 1U)));
}

// Ascending for descending x. -0 counts as 0.
std::uint32_t descending_key(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x + 0.0F);
  const std::uint32_t ascending = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return ~ascending;
}

// The key tiles from the one that holds the query tile's first position to the one that holds its last, and one more at either side.
TileRange neighbor_tiles(const PlanGeometry& geometry, std::int64_t query_tile, TileRange candidates) {
  const std::int64_t first = geometry.query_begin(query_tile);
  const std::int64_t last = geometry.query_begin(query_tile + 1) - 1;
  TileRange own;
  if (const TokenLayout* keys = geometry.key_layout.get(); keys != nullptr) {
    const auto tile_of = [keys](std::int64_t position) {
      return std::ranges::upper_bound(keys->parts().tile_begin, position) - keys->parts().tile_begin.begin() - 1;
    };
    own = {tile_of(first), tile_of(last) + 1};
  } else {
    own = {first / geometry.tile_k, last / geometry.tile_k + 1};
  }
  return {std::max(own.begin - 1, candidates.begin), std::min(own.end + 1, candidates.end)};
}

}  // namespace

RowRules row_rules(const PlanGeometry& geometry, std::int64_t b, std::int64_t query_tile, bool neighbors) {
  RowRules rules;
  rules.candidates = geometry.candidates(b, query_tile);
  const TokenLayout* queries = geometry.query_layout.get();
  const TokenLayout* keys = geometry.key_layout.get();
  if (keys != nullptr && keys->exact_tiles(queries != nullptr ? queries->document(query_tile) : 0) > 0) rules.exact_keys = keys;
  if (queries != nullptr && queries->exact(query_tile)) {
    rules.neighbors = rules.candidates;
  } else if (neighbors && geometry.Sq == geometry.Sk) {
    rules.neighbors = neighbor_tiles(geometry, query_tile, rules.candidates);
  }
  return rules;
}

// One integer per tile: not forced (1 bit), descending score (32 bits), reversed index (30 bits: PlanGeometry allows 2^30).
std::int64_t rank_keys(std::span<const float> scores, const RowRules& rules, std::span<std::uint64_t> keys) {
  const ReversedIndex reversed(rules.candidates.size());
  std::int64_t forced = 0;
  for (std::int64_t i = 0; i < rules.candidates.size(); ++i) {
    const std::int64_t tile = rules.candidates.begin + i;
    const float score = scores[static_cast<std::size_t>(tile)];
    const bool finite = std::isfinite(score);
    const bool first = !finite || rules.forced(tile);
    forced += first ? 1 : 0;
    keys[static_cast<std::size_t>(i)] = (std::uint64_t{first ? 0U : 1U} << 62U) |
                                        (std::uint64_t{descending_key(finite ? score : 0.0F)} << kIndexBits) |
                                        reversed(static_cast<std::uint32_t>(i));
  }
  return forced;
}

std::int64_t rank_tiles(std::span<const float> scores, const RowRules& rules, std::span<std::uint64_t> order) {
  const std::span<std::uint64_t> keys = order.first(static_cast<std::size_t>(rules.candidates.size()));
  const std::int64_t forced = rank_keys(scores, rules, keys);
  std::ranges::sort(keys);
  keys_to_tiles(rules, keys);
  return forced;
}

void first_tiles(const RowRules& rules, std::int64_t count, std::span<std::uint64_t> keys) {
  const std::span<std::uint64_t> all = keys.first(static_cast<std::size_t>(rules.candidates.size()));
  std::ranges::nth_element(all, all.begin() + count);
  keys_to_tiles(rules, all.first(static_cast<std::size_t>(count)));
}

std::int64_t count_for_mass(std::span<const float> mass, TileRange candidates, std::span<const std::uint64_t> order, std::int64_t forced,
                            float cdf) {
  const std::int64_t n = candidates.size();
  if (cdf >= 1.0F) return n;
  const auto finite = [&](std::uint64_t tile) { return std::isfinite(mass[tile]) ? mass[tile] : 0.0F; };
  float total = 0.0F;
  for (std::int64_t j = candidates.begin; j < candidates.end; ++j) total += finite(static_cast<std::uint64_t>(j));
  const float target = cdf * total;
  float sum = 0.0F;
  std::int64_t count = 0;
  while (count < n && (count < std::max<std::int64_t>(forced, 1) || sum < target)) sum += finite(order[static_cast<std::size_t>(count++)]);
  return count;
}

std::int64_t snap(std::int64_t count, int granularity, std::int64_t n) {
  return std::min((count + granularity - 1) / granularity * granularity, n);
}

KeptTiles::KeptTiles(const PlanGeometry& geometry, Workspace& ws)
    : words_per_row_((geometry.Gk() + 63) / 64),
      words_(ws.allocate<std::uint64_t>(static_cast<std::size_t>(geometry.rows() * words_per_row_))) {
  std::fill_n(words_, geometry.rows() * words_per_row_, 0U);
}

void KeptTiles::keep(std::int64_t row, std::span<const std::uint64_t> tiles) {
  std::uint64_t* words = words_ + row * words_per_row_;
  for (const std::uint64_t tile : tiles) words[tile / 64] |= std::uint64_t{1} << (tile % 64);
}

TilePlan KeptTiles::plan(const PlanGeometry& geometry, Skipped skipped, Workspace& ws) const {
  PlanBuilder builder(geometry, skipped, &ws);
  const std::span<std::int64_t> counts = builder.counts(Tier::refine);
  for (std::size_t row = 0; row < counts.size(); ++row) {
    const std::uint64_t* words = words_ + static_cast<std::int64_t>(row) * words_per_row_;
    for (std::int64_t w = 0; w < words_per_row_; ++w) counts[row] += std::popcount(words[w]);
  }
  builder.allocate();
  parallel_for((geometry.rows() + 63) / 64, [&](std::int64_t chunk, int) {
    for (std::int64_t row = chunk * 64; row < std::min(chunk * 64 + 64, geometry.rows()); ++row) {
      std::int32_t* out = builder.tiles(Tier::refine, row).data();
      for (std::int64_t w = 0; w < words_per_row_; ++w) {
        for (std::uint64_t word = words_[row * words_per_row_ + w]; word != 0; word &= word - 1) {
          *out++ = static_cast<std::int32_t>(w * 64 + std::countr_zero(word));
        }
      }
    }
  });
  return std::move(builder).finish();
}

}  // namespace winnow
