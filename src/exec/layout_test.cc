// Every executor of this machine under layouts, against the fp64 definition and against what a layout stands for.
#include "exec/layout_case.h"
#include "winnow/threads.h"

namespace winnow {
namespace {

void check(const Shape& shape, const PlanGeometry& g, DType dtype, std::int64_t pad = 0, float skip = -INFINITY) {
  std::vector<std::pair<std::string, TilePlan>> plans;
  plans.emplace_back("dense", TilePlan::dense(g, DenseReason::requested));
  plans.emplace_back("half", PlanBuilder::from_rows(g, Skipped::drop, some_rows(g, 0.5, 1)));
  plans.emplace_back("means", PlanBuilder::from_rows(g, Skipped::mean, some_rows(g, 0.3, 2)));
  plans.emplace_back("only means", PlanBuilder::from_rows(g, Skipped::mean, some_rows(g, 0.0, 3)));
  for (const auto& [name, plan] : plans) {
    Problem problem(shape, dtype, pad);
    problem.options.skip_threshold_log2 = skip;
    Outcome want = problem.define(plan);
    for (const Executor* e : executors_for(dtype)) {
      SCOPED_TRACE(name + " " + e->name);
      if (skip > -INFINITY) want = problem.define(plan, e->granule);
      const Outcome got = problem.run(e->name, plan, DType::f32, pad);
      expect_close(got, want, *e);
      EXPECT_EQ(got.counts.tested, want.counts.tested);
      EXPECT_EQ(got.counts.skipped, want.counts.skipped);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(Layouts, EveryExecutorMatchesTheDefinition) {
  for (const LayoutCase& c : layout_cases()) {
    SCOPED_TRACE(c.name);
    for (const DType dtype : {DType::bf16, DType::f32, DType::f16}) {
      const Shape shape{.B = 2, .H = 2, .Hk = 1, .Sq = c.tokens, .Sk = c.tokens, .D = 20};
      check(shape, geometry_of(c, shape), dtype, 3);
      check(shape, geometry_of(c, shape, 96, 32, 8), dtype);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(Layouts, GroupedHeadsOf28On4AndAGridWithRaggedCubes) {
  const LayoutCase c{.name = "", .grid = {5, 10, 6}, .tokens = 300};
  const Shape shape{.H = 28, .Hk = 4, .Sq = c.tokens, .Sk = c.tokens, .D = 8};
  check(shape, geometry_of(c, shape), DType::bf16);
}

TEST(Layouts, SkipSoftmaxVotesOnRaggedTiles) {
  for (const LayoutCase& c : layout_cases()) {
    SCOPED_TRACE(c.name);
    const Shape shape{.H = 2, .Hk = 2, .Sq = c.tokens, .Sk = c.tokens, .D = 24};
    check(shape, geometry_of(c, shape), DType::f32, 0, -2.0F);
    check(shape, geometry_of(c, shape, 128, 128), DType::f32, 0, -2.0F);
  }
}

TEST(Layouts, TheSameBitsOnAnyNumberOfThreads) {
  const int before = num_threads();
  for (const LayoutCase& c : layout_cases()) {
    const Shape shape{.H = 2, .Hk = 1, .Sq = c.tokens, .Sk = c.tokens, .D = 64};
    const PlanGeometry g = geometry_of(c, shape);
    const TilePlan plan = PlanBuilder::from_rows(g, Skipped::mean, some_rows(g, 0.4, 5));
    for (const Executor* e : executors_for(DType::bf16)) {
      Problem problem(shape, DType::bf16);
      set_num_threads(1);
      const Outcome one = problem.run(e->name, plan);
      set_num_threads(2);
      const Outcome two = problem.run(e->name, plan);
      EXPECT_EQ(one.out, two.out) << c.name << ' ' << e->name;
      EXPECT_EQ(one.lse, two.lse) << c.name << ' ' << e->name;
    }
  }
  set_num_threads(before);
}

TEST(Layouts, ALayoutIsThePermutedProblemBitForBit) {
  const LayoutCase c{.name = "", .grid = {9, 7, 6}, .tokens = 378};
  const Shape shape{.H = 2, .Hk = 2, .Sq = c.tokens, .Sk = c.tokens, .D = 64};
  const PlanGeometry g = geometry_of(c, shape);
  const PlanGeometry plain = geometry_of(shape);
  const std::int32_t* tokens = g.query_tokens();
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const Executor* e : executors_for(dtype)) {
      for (const Skipped skipped : {Skipped::drop, Skipped::mean}) {
        SCOPED_TRACE(e->name);
        Problem problem(shape, dtype);
        Problem permuted(shape, dtype);
        take_rows(problem.q, tokens, permuted.q);
        take_rows(problem.k, tokens, permuted.k);
        take_rows(problem.v, tokens, permuted.v);
        const auto rows = some_rows(g, 0.5, 9);
        const Outcome got = problem.run(e->name, PlanBuilder::from_rows(g, skipped, rows));
        const Outcome want = permuted.run(e->name, PlanBuilder::from_rows(plain, skipped, rows));
        const std::int64_t width = shape.H * shape.D;
        for (std::int64_t s = 0; s < c.tokens; ++s) {
          for (std::int64_t i = 0; i < width; ++i) {
            ASSERT_EQ(got.out[static_cast<std::size_t>(tokens[s] * width + i)], want.out[static_cast<std::size_t>(s * width + i)]);
          }
          ASSERT_EQ(got.lse[static_cast<std::size_t>(tokens[s])], want.lse[static_cast<std::size_t>(s)]);
        }
      }
    }
  }
}

TEST(Layouts, DenseInCubesIsDenseInRasterOrderWithinRounding) {
  const LayoutCase c{.name = "", .grid = {9, 7, 6}, .tokens = 378};
  const Shape shape{.H = 2, .Hk = 2, .Sq = c.tokens, .Sk = c.tokens, .D = 64};
  for (const Executor* e : executors_for(DType::f32)) {
    Problem problem(shape, DType::f32);
    const Outcome raster = problem.run(e->name, TilePlan::dense(geometry_of(shape), DenseReason::requested));
    expect_close(problem.run(e->name, TilePlan::dense(geometry_of(c, shape), DenseReason::requested)), raster, *e);
  }
}

TEST(Layouts, PackedDocumentsAreSeparateCalls) {
  const std::vector<std::int64_t> documents = {0, 1, 64, 128, 193, 4290};
  const LayoutCase c{.name = "", .documents = documents, .tokens = 4290};
  const Shape shape{.H = 1, .Hk = 1, .Sq = c.tokens, .Sk = c.tokens, .D = 32};
  const PlanGeometry g = geometry_of(c, shape);
  for (const Executor* e : executors_for(DType::bf16)) {
    Problem all(shape, DType::bf16);
    const Outcome packed = all.run(e->name, TilePlan::dense(g, DenseReason::requested));
    for (std::size_t d = 0; d + 1 < documents.size(); ++d) {
      const std::int64_t n = documents[d + 1] - documents[d];
      Problem one({.Sq = n, .Sk = n, .D = 32}, DType::bf16);
      std::vector<std::int32_t> tokens;
      for (std::int64_t t = documents[d]; t < documents[d + 1]; ++t) tokens.push_back(static_cast<std::int32_t>(t));
      take_rows(all.q, tokens.data(), one.q);
      take_rows(all.k, tokens.data(), one.k);
      take_rows(all.v, tokens.data(), one.v);
      const Outcome alone = one.run(e->name, TilePlan::dense(winnow::geometry_of(one.shape), DenseReason::requested));
      EXPECT_EQ(part(packed, shape, documents[d], documents[d + 1]), alone.out) << e->name << " document " << d;
    }
  }
}

TEST(Layouts, WhatIsNotFiniteStaysInItsDocument) {
  const std::vector<TokenSpan> spans = {{0, 130, SpanKind::video}, {130, 140, SpanKind::padding}, {140, 400, SpanKind::video}};
  const LayoutCase c{.name = "", .spans = spans, .documents = {0, 140, 400}, .tokens = 400};
  const Shape shape{.Sq = c.tokens, .Sk = c.tokens, .D = 32};
  const PlanGeometry g = geometry_of(c, shape);
  for (const Skipped skipped : {Skipped::drop, Skipped::mean}) {
    const TilePlan plan = PlanBuilder::from_rows(g, skipped, some_rows(g, 0.4, 4));
    for (const DType dtype : {DType::bf16, DType::f32}) {
      for (const Executor* e : executors_for(dtype)) {
        SCOPED_TRACE(e->name);
        Problem clean(shape, dtype);
        const Outcome want = clean.run(e->name, plan);
        Problem dirty(shape, dtype);
        for (std::int64_t token = 100; token < 140; ++token) {  // of the first document, and padding
          for (std::int64_t d = 0; d < shape.D; ++d) {
            put(dirty.k.view, token * shape.D + d, std::nanf(""));
            put(dirty.v.view, token * shape.D + d, INFINITY);
            if (token >= 130) put(dirty.q.view, token * shape.D + d, std::nanf(""));
          }
        }
        const Outcome got = dirty.run(e->name, plan);
        EXPECT_EQ(part(got, shape, 140, 400), part(want, shape, 140, 400));
        for (const float x : part(got, shape, 130, 140)) EXPECT_EQ(x, 0.0F);
        for (std::size_t token = 130; token < 140; ++token) {
          EXPECT_EQ(got.lse[token], -INFINITY);
          EXPECT_EQ(got.inv_l[token], 0.0F);
        }
      }
    }
  }
}

TEST(Layouts, PaddingKeysInsideADocumentDoNotExist) {
  const std::vector<TokenSpan> spans = {{0, 130, SpanKind::video}, {130, 150, SpanKind::padding}, {150, 300, SpanKind::exact}};
  const LayoutCase c{.name = "", .spans = spans, .tokens = 300};
  const Shape shape{.Sq = 300, .Sk = 300, .D = 32};
  const TilePlan plan = TilePlan::dense(geometry_of(c, shape), DenseReason::requested);
  for (const Executor* e : executors_for(DType::f32)) {
    Problem clean(shape, DType::f32);
    Problem dirty(shape, DType::f32);
    for (std::int64_t i = 130 * 32; i < 150 * 32; ++i) {
      put(dirty.k.view, i, 1e30F);
      put(dirty.v.view, i, std::nanf(""));
    }
    EXPECT_EQ(clean.run(e->name, plan).out, dirty.run(e->name, plan).out) << e->name;
  }
}

}  // namespace
}  // namespace winnow
