// Order, ties and budgets of one row.
#include "select/ranking.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/random.h"
#include "winnow/workspace.h"

namespace winnow {
namespace {

using testing::ElementsAre;

TileRange all(std::size_t n) { return {0, static_cast<std::int64_t>(n)}; }

std::vector<std::uint64_t> order_of(const std::vector<float>& scores, TileRange forced = {}, std::int64_t* count = nullptr) {
  std::vector<std::uint64_t> order(scores.size());
  const std::int64_t n = rank_tiles(scores, {all(scores.size()), forced}, order);
  if (count != nullptr) *count = n;
  return order;
}

TEST(RankTiles, DescendingScores) { EXPECT_THAT(order_of({0.5F, -1.0F, 3.0F, -2.5F}), ElementsAre(2, 0, 1, 3)); }

TEST(RankTiles, TiesFollowReversedBits) {
  EXPECT_THAT(order_of(std::vector<float>(8, 1.0F)), ElementsAre(0, 4, 2, 6, 1, 5, 3, 7));
  EXPECT_THAT(order_of(std::vector<float>(5, -1.0F)), ElementsAre(0, 4, 2, 1, 3));  // ceil(log2 5) = 3 bits
  EXPECT_THAT(order_of({0.0F, -0.0F, 0.0F}), ElementsAre(0, 2, 1));
  EXPECT_THAT(order_of({1.0F}), ElementsAre(0));
}

TEST(RankTiles, TiesFavourNeitherEnd) {
  const std::vector<std::uint64_t> order = order_of(std::vector<float>(1000, 0.0F));
  const double mean = std::accumulate(order.begin(), order.begin() + 100, 0.0) / 100;
  EXPECT_NEAR(mean, 499.5, 25.0);
}

TEST(RankTiles, ForcedAndNonFiniteComeFirst) {
  std::int64_t forced = 0;
  const float inf = std::numeric_limits<float>::infinity();
  const auto order = order_of({9.0F, std::nanf(""), 1.0F, 2.0F, -inf, inf}, {2, 4}, &forced);
  EXPECT_EQ(forced, 5);
  EXPECT_EQ(order.back(), 0U);
}

TEST(RankTiles, OnlyCandidates) {
  const std::vector<float> scores = {9.0F, 1.0F, 3.0F, 2.0F, 8.0F};
  std::vector<std::uint64_t> order(3);
  EXPECT_EQ(rank_tiles(scores, {{1, 4}, {3, 4}}, order), 1);
  EXPECT_THAT(order, ElementsAre(3, 2, 1));
  EXPECT_EQ(count_for_mass(scores, {1, 4}, order, 1, 0.5F), 2);  // 2 + 3 of 6
}

TEST(CountForMass, MatchesADefinitionInF64) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<float> mass(97);
    fill_uniform(mass, seed);
    for (float& m : mass) m = std::pow(m, 6.0F);
    const auto order = order_of(mass);
    for (const float cdf : {0.01F, 0.3F, 0.5F, 0.9F, 0.99F}) {
      std::vector<double> sorted(mass.begin(), mass.end());
      std::ranges::sort(sorted, std::greater<>());
      const double total = std::accumulate(sorted.begin(), sorted.end(), 0.0);
      std::int64_t expected = 0;
      for (double sum = 0.0; sum < static_cast<double>(cdf) * total;) sum += sorted[static_cast<std::size_t>(expected++)];
      EXPECT_EQ(count_for_mass(mass, all(mass.size()), order, 0, cdf), expected) << "seed " << seed << " cdf " << cdf;
    }
  }
}

TEST(CountForMass, Edges) {
  const std::vector<float> mass = {0.5F, 0.25F, 0.25F, 0.0F};
  const auto order = order_of(mass);
  EXPECT_EQ(count_for_mass(mass, all(mass.size()), order, 0, 1.0F), 4);   // all, even those without mass
  EXPECT_EQ(count_for_mass(mass, all(mass.size()), order, 0, 1e-9F), 1);  // at least one
  EXPECT_EQ(count_for_mass(mass, all(mass.size()), order, 0, 0.5F), 1);   // reaching it is enough
  EXPECT_EQ(count_for_mass(mass, all(mass.size()), order, 0, 0.500001F), 2);
  EXPECT_EQ(count_for_mass(mass, all(mass.size()), order, 3, 0.5F), 3);  // forced tiles stay, and their mass counts
  const std::vector<float> bad = {std::nanf(""), 1.0F};
  EXPECT_EQ(count_for_mass(bad, all(2), order_of(bad), 1, 0.9F), 2);
}

TEST(Snap, RoundsUpAndIsCapped) {
  EXPECT_EQ(snap(5, 1, 9), 5);
  EXPECT_EQ(snap(5, 4, 9), 8);
  EXPECT_EQ(snap(9, 4, 9), 9);
  EXPECT_EQ(snap(0, 4, 9), 0);
}

TEST(RowRules, NeighborsAreOneTileAroundTheQueries) {
  PlanGeometry g;
  g.Sq = g.Sk = 1000;
  const auto range = [&](std::int64_t i) {
    const TileRange r = row_rules(g, 0, i, true).neighbors;
    return std::pair(r.begin, r.end);
  };
  EXPECT_EQ(range(0), std::pair(std::int64_t{0}, std::int64_t{3}));
  EXPECT_EQ(range(3), std::pair(std::int64_t{5}, std::int64_t{9}));
  EXPECT_EQ(range(7), std::pair(std::int64_t{13}, std::int64_t{16}));  // 104 queries, tiles 14 and 15, and 13
  EXPECT_EQ(row_rules(g, 0, 3, false).neighbors.size(), 0);
  EXPECT_EQ(row_rules(g, 0, 3, false).candidates.size(), 16);
  g.Sk = 900;
  EXPECT_EQ(row_rules(g, 0, 3, true).neighbors.size(), 0);  // positions of another sequence
}

TEST(KeptTiles, BecomeAscendingLists) {
  PlanGeometry g;
  g.Sq = 200;
  g.Sk = 64 * 130;
  Workspace ws;
  KeptTiles kept(g, ws);
  const std::uint64_t tiles[] = {129, 0, 63, 64};
  kept.keep(1, tiles);
  const TilePlan plan = kept.plan(g, Skipped::drop, ws);
  EXPECT_TRUE(plan.tiles(Tier::refine, 0).empty());
  EXPECT_THAT(plan.tiles(Tier::refine, 1), ElementsAre(0, 63, 64, 129));
}

}  // namespace
}  // namespace winnow
