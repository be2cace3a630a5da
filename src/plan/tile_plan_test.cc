// Building and validating plans, and what is derived from them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/message_of.h"
#include "winnow/error.h"
#include "winnow/plan.h"
#include "winnow/workspace.h"

namespace winnow {
namespace {

PlanGeometry geometry(std::int64_t Sq, std::int64_t Sk) {
  PlanGeometry g;
  g.Sq = Sq;
  g.Sk = Sk;
  return g;
}

TEST(TilePlan, DenseListsEveryValidTile) {
  PlanGeometry g = geometry(200, 130);
  g.B = 2;
  g.key_lengths = {130, 64};
  const TilePlan plan = TilePlan::dense(g, DenseReason::requested);
  EXPECT_EQ(plan.tiles(Tier::refine, g.row(0, 0, 1)).size(), 3U);
  EXPECT_EQ(plan.tiles(Tier::refine, g.row(1, 0, 1)).size(), 1U);
  EXPECT_TRUE(plan.tiles(Tier::skim, 0).empty());
  EXPECT_EQ(plan.density(), 1.0);
  EXPECT_TRUE(plan == plan.canonical());
}

TEST(TilePlan, DensityWeighsRaggedTiles) {
  const PlanGeometry g = geometry(130, 100);  // rows of 128 and 2 queries; tiles of 64 and 36 keys
  const TilePlan plan = PlanBuilder::from_rows(g, Skipped::drop, {{0}, {1}});
  EXPECT_DOUBLE_EQ(plan.density(), (128.0 * 64 + 2.0 * 36) / (130.0 * 100));
  EXPECT_DOUBLE_EQ(plan.tier_share(Tier::skip), 1.0 - plan.density());
}

TEST(TilePlan, ExcludedTilesDoNotCount) {
  const PlanGeometry g = geometry(64, 256);
  const TilePlan plan = PlanBuilder::from_rows(g, Skipped::drop, {{0, 1}}, {}, {{2, 3}});
  EXPECT_DOUBLE_EQ(plan.density(), 1.0);
}

TEST(TilePlan, MeansCostOneVirtualKeyPerGroup) {
  const PlanGeometry g = geometry(128, 640);
  const TilePlan plan = PlanBuilder::from_rows(g, Skipped::mean, {{0, 1}}, {{2}});
  EXPECT_DOUBLE_EQ(plan.modelled_cost({.refine = 1.0, .skim = 0.5, .mean = 1.0}), 2.5 + 10.0 / 64);
}

TEST(TilePlan, TilesOfNoTokensAreRefused) {
  EXPECT_THROW(PlanBuilder::from_rows({.Sq = 4, .Sk = 4, .tile_q = 0}, Skipped::drop, {{0}}), Error);
}

TEST(TilePlan, BuilderAllocatesOnce) {
  PlanBuilder builder({.Sq = 256, .Sk = 128}, Skipped::drop);
  builder.counts(Tier::refine)[0] = 1;
  builder.allocate();
  EXPECT_THROW(builder.allocate(), Error);  // it would turn offsets into sums of offsets
}

// Two documents of 100 and 60 tokens, the second one's last 20 in an exact tile.
PlanGeometry packed() {
  const auto layout = [](std::vector<std::int32_t> tile_begin, std::vector<std::int32_t> document_begin, std::vector<std::uint8_t> exact) {
    TokenLayout::Parts parts{.num_tokens = 170};
    for (std::int32_t i = 0; i < 160; ++i) parts.tokens.push_back(169 - i);
    parts.tile_begin = std::move(tile_begin);
    parts.document_begin = std::move(document_begin);
    parts.exact = std::move(exact);
    return std::make_shared<const TokenLayout>(std::move(parts));
  };
  PlanGeometry g = geometry(170, 170);
  g.query_layout = layout({0, 100, 140, 160}, {0, 1, 3}, {0, 0, 1});
  g.key_layout = layout({0, 64, 100, 140, 160}, {0, 2, 4}, {0, 0, 0, 1});
  return g;
}

TEST(TilePlan, RowsSeeTheirDocumentOnly) {
  const TilePlan dense = TilePlan::dense(packed(), DenseReason::requested);
  EXPECT_EQ(std::vector(dense.tiles(Tier::refine, 0).begin(), dense.tiles(Tier::refine, 0).end()), (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(std::vector(dense.tiles(Tier::refine, 2).begin(), dense.tiles(Tier::refine, 2).end()), (std::vector<std::int32_t>{2, 3}));
  EXPECT_EQ(dense.density(), 1.0);
  EXPECT_EQ(packed().pairs(), 100.0 * 100 + 60.0 * 60);
  EXPECT_TRUE(dense == dense.canonical());
  const TilePlan half = PlanBuilder::from_rows(packed(), Skipped::mean, {{1}, {3}, {2, 3}});
  EXPECT_DOUBLE_EQ(half.density(), (100.0 * 36 + 40.0 * 20 + 20.0 * 60) / (100.0 * 100 + 60.0 * 60));
  EXPECT_DOUBLE_EQ(half.modelled_cost(), 1 + 2.0 / 64 + 1 + 2.0 / 64 + 2);
}

TEST(TilePlan, OtherDocumentsAndMissingExactTilesAreRefused) {
  EXPECT_THROW(PlanBuilder::from_rows(packed(), Skipped::drop, {{2}, {3}, {2, 3}}), Error);
  EXPECT_THROW(PlanBuilder::from_rows(packed(), Skipped::drop, {{0}, {2}, {2, 3}}), Error);
  EXPECT_THROW(PlanBuilder::from_rows(packed(), Skipped::drop, {{0}, {3}, {3}}), Error);
  EXPECT_THROW(PlanBuilder::from_rows(packed(), Skipped::drop, {{0}, {}, {2, 3}}, {{}, {3}, {}}), Error);
}

TEST(TilePlan, LayoutsThatDoNotFitAreRefused) {
  PlanGeometry g = packed();
  g.Sk = 171;
  EXPECT_THROW(g.validate(), Error);
  g = packed();
  g.tile_k = 32;
  g.mean_group = 32;
  EXPECT_THROW(g.validate(), Error);
  g = packed();
  g.query_layout = nullptr;
  EXPECT_THROW(g.validate(), Error);
  g = packed();
  g.key_lengths = {170};
  EXPECT_THROW(g.validate(), Error);
  EXPECT_TRUE(packed() == packed());
  g = packed();
  TokenLayout::Parts parts = g.key_layout->parts();
  std::swap(parts.tokens[0], parts.tokens[1]);
  g.key_layout = std::make_shared<const TokenLayout>(parts);
  EXPECT_FALSE(packed() == g);
}

TEST(TokenLayout, BadPartsAreRefused) {
  const TokenLayout::Parts good{.num_tokens = 4, .tokens = {3, 1}, .tile_begin = {0, 2}, .document_begin = {0, 1}, .exact = {0}};
  EXPECT_NO_THROW(TokenLayout{good});
  const auto refuses = [&](auto change) {
    TokenLayout::Parts parts = good;
    change(parts);
    EXPECT_THROW(TokenLayout{parts}, Error);
  };
  refuses([](TokenLayout::Parts& p) { p.tokens[0] = 4; });
  refuses([](TokenLayout::Parts& p) { p.tokens[0] = -1; });
  refuses([](TokenLayout::Parts& p) { p.tokens[0] = 1; });
  refuses([](TokenLayout::Parts& p) { p.num_tokens = -1; });
  refuses([](TokenLayout::Parts& p) { p.tile_begin = {0, 1}; });
  refuses([](TokenLayout::Parts& p) { p.tile_begin = {0, 2, 2}; });
  refuses([](TokenLayout::Parts& p) { p.tile_begin = {1, 2}; });
  refuses([](TokenLayout::Parts& p) { p.tile_begin = {}; });
  refuses([](TokenLayout::Parts& p) { p.document_begin = {0}; });
  refuses([](TokenLayout::Parts& p) { p.document_begin = {0, 2}; });
  refuses([](TokenLayout::Parts& p) { p.document_begin = {}; });
  refuses([](TokenLayout::Parts& p) { p.exact = {}; });
  refuses([](TokenLayout::Parts& p) { p.exact = {2}; });
}

TEST(TilePlan, InvalidListsAreRefused) {
  const PlanGeometry g = geometry(128, 256);
  EXPECT_THROW(PlanBuilder::from_rows(g, Skipped::drop, {{4}}), Error);
  EXPECT_THROW(PlanBuilder::from_rows(g, Skipped::drop, {{-1}}), Error);
  EXPECT_THROW(PlanBuilder::from_rows(g, Skipped::drop, {{1, 1}}), Error);
  EXPECT_THROW(PlanBuilder::from_rows(g, Skipped::drop, {{1}}, {{1}}), Error);
  EXPECT_THROW(PlanBuilder::from_rows(g, Skipped::drop, {{1}}, {}, {{1}}), Error);
  EXPECT_THROW(PlanBuilder::from_rows(g, Skipped::drop, {{1}, {2}}), Error);
  PlanGeometry bad = g;
  bad.tile_k = 0;
  EXPECT_THROW(TilePlan::dense(bad, DenseReason::none), Error);
  bad = g;
  bad.mean_group = 48;
  EXPECT_THROW(TilePlan::dense(bad, DenseReason::none), Error);
  bad = g;
  bad.key_lengths = {257};
  EXPECT_THROW(TilePlan::dense(bad, DenseReason::none), Error);
}

TEST(TilePlan, DescribesSmallDensities) {
  const TilePlan plan = PlanBuilder::from_rows({.B = 1, .H = 1, .Sq = 1, .Sk = 64 << 21}, Skipped::drop, {{0}});
  EXPECT_THAT(plan.describe(), testing::HasSubstr("density 4.7683716e-07 "));  // 2^-21
}

TEST(TilePlan, BuilderHasNoOtherRows) {
  PlanBuilder builder({.B = 1, .H = 2, .Sq = 300, .Sk = 300}, Skipped::drop);
  builder.counts(Tier::refine)[0] = 1;
  builder.allocate();
  for (const std::int64_t row : {std::int64_t{-1}, std::int64_t{6}, std::int64_t{1} << 40U}) {
    EXPECT_THAT(tests::message_of([&] { builder.tiles(Tier::refine, row); }),
                testing::HasSubstr("row: expected 0 to 5, got " + std::to_string(row)));
  }
}

TEST(TilePlan, BuilderSortsRowsAndUsesTheWorkspace) {
  const PlanGeometry g = geometry(256, 256);
  Workspace ws;
  PlanBuilder builder(g, Skipped::drop, &ws);
  builder.counts(Tier::refine)[0] = 2;
  builder.counts(Tier::refine)[1] = 1;
  builder.allocate();
  builder.tiles(Tier::refine, 0)[0] = 3;
  builder.tiles(Tier::refine, 0)[1] = 1;
  builder.tiles(Tier::refine, 1)[0] = 2;
  const TilePlan plan = std::move(builder).finish();
  EXPECT_EQ(plan.tiles(Tier::refine, 0)[0], 1);
  EXPECT_EQ(plan.tiles(Tier::refine, 0)[1], 3);
  EXPECT_GT(ws.used_bytes(), 0U);
  EXPECT_TRUE(plan == PlanBuilder::from_rows(g, Skipped::drop, {{1, 3}, {2}}));
  EXPECT_FALSE(plan == PlanBuilder::from_rows(g, Skipped::mean, {{1, 3}, {2}}));
}

TEST(TilePlan, EmptyProblemsAreFine) {
  EXPECT_EQ(TilePlan::dense(geometry(0, 0), DenseReason::none).density(), 1.0);
  EXPECT_EQ(TilePlan::dense(geometry(5, 0), DenseReason::none).tiles(Tier::refine, 0).size(), 0U);
  EXPECT_EQ(PlanBuilder::from_rows(geometry(100, 100), Skipped::drop, {{}}).density(), 0.0);
}

}  // namespace
}  // namespace winnow
