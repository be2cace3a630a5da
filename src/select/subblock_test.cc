// SubBlock against its published formula in f64.
#include "winnow/select/subblock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "select/rows.h"
#include "select/select_testing.h"
#include "winnow/error.h"
#include "winnow/workspace.h"

namespace winnow {
namespace {

using testing_select::by_score;
using testing_select::dot;
using testing_select::mean_of;
using testing_select::Problem;

// ln sum exp(scale * mean(Q_a) . mean(K_b)) over the cells of a pair of tiles, one cell pair after the other.
double tile_score(const Problem& p, const PlanGeometry& g, const SubBlock& o, std::int64_t b, std::int64_t h, std::int64_t i,
                  std::int64_t j) {
  const std::int64_t q_cell = g.tile_k / o.n_q;
  const std::int64_t k_cell = g.tile_k / o.n_k;
  const double scale = 1.0 / std::sqrt(static_cast<double>(p.q.view().size(3)));
  const std::int64_t key_head = h / (p.q.view().size(2) / p.k.view().size(2));
  std::vector<double> logits;
  for (std::int64_t s = i * g.tile_q; s < std::min(g.Sq, (i + 1) * g.tile_q); s += q_cell) {
    const auto q = mean_of(p.q, b, h, s, std::min(s + q_cell, g.Sq));
    for (std::int64_t t = j * g.tile_k; t < std::min(g.keys(b), (j + 1) * g.tile_k); t += k_cell) {
      logits.push_back(scale * dot(q, mean_of(p.k, b, key_head, t, std::min(t + k_cell, g.keys(b)))));
    }
  }
  const double largest = *std::ranges::max_element(logits);
  double sum = 0.0;
  for (const double x : logits) sum += std::exp(x - largest);
  return largest + std::log(sum);
}

void expect_matches_formula(const Problem& p, const PlanSpec& spec, SubBlock options) {
  options.neighbors = false;
  Workspace ws;
  const TilePlan plan = select(p.q, p.k, spec, options, ws);
  const PlanGeometry& g = plan.geometry();
  for (std::int64_t row = 0; row < g.rows(); ++row) {
    const std::int64_t b = row / (g.H * g.Gq());
    std::vector<double> scores;
    for (std::int64_t j = 0; j < g.key_tiles(b); ++j) scores.push_back(tile_score(p, g, options, b, row / g.Gq() % g.H, row % g.Gq(), j));
    auto best = by_score(scores);
    best.resize(static_cast<std::size_t>(std::ceil((1.0 - static_cast<double>(options.sparsity)) * static_cast<double>(scores.size()))));
    std::ranges::sort(best);
    EXPECT_THAT(plan.tiles(Tier::refine, row), testing::ElementsAreArray(best)) << "row " << row;
  }
}

TEST(SubBlock, MatchesThePublishedFormula) { expect_matches_formula(Problem(2, 640, 640, 2, 2, 32), {}, {}); }
TEST(SubBlock, GroupedHeadsAndRaggedLengths) { expect_matches_formula(Problem(1, 129, 1063, 28, 4, 16), {}, {.sparsity = 0.5F}); }
TEST(SubBlock, EveryNumberOfCells) {
  for (const int n_q : {1, 2, 4, 8}) {
    for (const int n_k : {1, 2, 4, 8})
      expect_matches_formula(Problem(1, 201, 523, 1, 1, 16), {}, {.sparsity = 0.5F, .n_k = n_k, .n_q = n_q});
  }
}
TEST(SubBlock, KeyLengthsEndInTheMiddleOfACell) {
  PlanSpec spec;
  spec.key_lengths = {300, 69};
  expect_matches_formula(Problem(2, 300, 300, 2, 1, 24), spec, {.sparsity = 0.5F});
}
TEST(SubBlock, OtherTileSizes) {
  PlanSpec spec;
  spec.tile_q = 32;
  spec.tile_k = 16;
  spec.mean_group = 8;
  expect_matches_formula(Problem(1, 201, 201, 1, 1, 8), spec, {.sparsity = 0.6F});
}

TEST(SubBlock, BudgetsAreUpperBoundsOfSparsityAndReported) {
  const Problem p(1, 640, 640, 1, 1, 16);  // 5 rows of 10 tiles
  Workspace ws;
  const auto kept = [&](float sparsity, int granularity) {
    SelectReport report;
    PlanSpec spec;
    spec.granularity = granularity;
    spec.report = &report;
    const TilePlan plan = select(p.q, p.k, spec, SubBlock{.sparsity = sparsity, .neighbors = false}, ws);
    EXPECT_EQ(report.candidates, 50);
    EXPECT_EQ(static_cast<double>(report.kept) / 50.0, plan.density());
    return std::pair(report.asked / 5, report.kept / 5);
  };
  EXPECT_EQ(kept(0.75F, 1), std::pair(std::int64_t{3}, std::int64_t{3}));
  EXPECT_EQ(kept(0.9F, 1), std::pair(std::int64_t{1}, std::int64_t{1}));  // 1 - 0.9f is a little more than 0.1
  EXPECT_EQ(kept(0.75F, 8), std::pair(std::int64_t{3}, std::int64_t{8}));
  EXPECT_EQ(kept(0.999F, 1), std::pair(std::int64_t{1}, std::int64_t{1}));  // at least one tile
  EXPECT_EQ(kept(1e-6F, 1), std::pair(std::int64_t{10}, std::int64_t{10}));
}

TEST(SubBlock, BudgetsPerHeadAndPerRow) {
  const Problem p(2, 640, 640, 2, 1, 16);
  Workspace ws;
  PlanSpec spec;
  const std::vector<float> heads = {0.1F, 0.5F};
  spec.keep = heads;
  const SubBlock options{.neighbors = false};
  const TilePlan by_head = select(p.q, p.k, spec, options, ws);
  std::vector<float> rows(20);
  for (std::size_t r = 0; r < rows.size(); ++r) rows[r] = static_cast<float>(r % 10 + 1) / 10.0F;
  spec.keep = rows;
  const TilePlan by_row = select(p.q, p.k, spec, options, ws);
  for (std::int64_t row = 0; row < 20; ++row) {
    EXPECT_EQ(by_head.tiles(Tier::refine, row).size(), row / 5 % 2 == 0 ? 1U : 5U);
    EXPECT_EQ(by_row.tiles(Tier::refine, row).size(), static_cast<std::size_t>(row % 10 + 1));
  }
  const std::vector<float> wrong = {0.1F, 0.5F, 0.5F};
  spec.keep = wrong;
  EXPECT_THROW(select(p.q, p.k, spec, options, ws), Error);
  const std::vector<float> zero = {0.0F, 0.5F};
  spec.keep = zero;
  EXPECT_THROW(select(p.q, p.k, spec, options, ws), Error);
}

// sglang router notes: ties broken by index favour early blocks.
TEST(SubBlock, EqualScoresAreSpreadOverTheSequence) {
  Problem p(1, 128, 4096, 1, 1, 16);
  std::fill_n(p.k.as<float>(), p.k.numel(), 0.5F);
  Workspace ws;
  const TilePlan plan = select(p.q, p.k, {}, SubBlock{}, ws);
  const auto tiles = plan.tiles(Tier::refine, 0);
  ASSERT_EQ(tiles.size(), 16U);
  for (std::size_t i = 0; i < tiles.size(); ++i) EXPECT_EQ(tiles[i], static_cast<std::int32_t>(4 * i));
}

// Scores that differ by less than bf16 can tell are still told apart.
TEST(SubBlock, ScoresAreFullF32) {
  Problem p(1, 64, 4096, 1, 1, 16);
  std::fill_n(p.q.as<float>(), p.q.numel(), 2.0F);
  for (std::int64_t t = 0; t < 4096; ++t) std::fill_n(p.k.as<float>() + t * 16, 16, 1.0F + 1e-5F * static_cast<float>(t / 64));
  Workspace ws;
  const TilePlan plan = select(p.q, p.k, {}, SubBlock{}, ws);
  EXPECT_THAT(plan.tiles(Tier::refine, 0), testing::Each(testing::Ge(48)));
}

TEST(SubBlock, ExtremeScoresKeepTheirOrder) {  // far apart: the sum of exponentials alone would underflow
  Problem p(1, 64, 640, 1, 1, 4);
  std::fill_n(p.q.as<float>(), p.q.numel(), 100.0F);
  for (std::int64_t t = 0; t < 640; ++t) std::fill_n(p.k.as<float>() + t * 4, 4, static_cast<float>((t / 64 * 7) % 10));
  Workspace ws;
  const TilePlan plan = select(p.q, p.k, {}, SubBlock{.sparsity = 0.5F}, ws);
  EXPECT_THAT(plan.tiles(Tier::refine, 0), testing::ElementsAre(1, 4, 5, 7, 8));  // values 7 8 5 9 6
}

TEST(SubBlock, RefusesWhatDoesNotDivide) {
  for (const SubBlock& bad : {SubBlock{.sparsity = 1.0F}, SubBlock{.sparsity = -0.1F}, SubBlock{.sparsity = std::nanf("")},
                              SubBlock{.n_k = 3}, SubBlock{.n_q = 0}, SubBlock{.n_q = 16}}) {
    EXPECT_THROW(bad.validate(), Error);
  }
  const Problem p(1, 100, 100, 1, 1, 8);
  Workspace ws;
  PlanSpec spec;
  spec.tile_k = spec.mean_group = 20;
  EXPECT_THROW(select(p.q, p.k, spec, SubBlock{.n_k = 8}, ws), Error);
}

TEST(TilesOfShare, RoundsUpButNotForTheRoundingOfTheShare) {
  EXPECT_EQ(tiles_of_share(0.25, 10), 3);
  EXPECT_EQ(tiles_of_share(static_cast<double>(1.0F - 0.9F), 10), 1);
  EXPECT_EQ(tiles_of_share(static_cast<double>(0.1F), 1000), 100);
  EXPECT_EQ(tiles_of_share(1.0, 7), 7);
  EXPECT_EQ(tiles_of_share(1e-9, 7), 1);
  EXPECT_EQ(tiles_of_share(0.5, 0), 0);
}

}  // namespace
}  // namespace winnow
