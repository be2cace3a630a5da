// Building and validating plans, and what is derived from them.
#include <gtest/gtest.h>

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
