// The executors of a GPU under layouts, against the definition and against what a layout stands for.
#include <numeric>

#include "exec/cuda/cuda_case.h"
#include "exec/layout_case.h"

namespace winnow {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

using GpuLayouts = GpuTest;

struct NamedPlan {
  std::string name;
  TilePlan plan;
};
std::vector<NamedPlan> plans_of(const PlanGeometry& g) {
  std::vector<NamedPlan> plans;
  plans.push_back({"dense", TilePlan::dense(g, DenseReason::requested)});
  plans.push_back({"half", PlanBuilder::from_rows(g, Skipped::drop, some_rows(g, 0.5, 1))});
  plans.push_back({"means", PlanBuilder::from_rows(g, Skipped::mean, some_rows(g, 0.3, 2))});
  plans.push_back({"only means", PlanBuilder::from_rows(g, Skipped::mean, some_rows(g, 0.0, 3))});
  return plans;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (std::isinf(want[i])) {
      ASSERT_EQ(got[i], want[i]) << i;
    } else {
      ASSERT_NEAR(got[i], want[i], tolerance * (1.0 + std::fabs(double{want[i]}))) << i;
    }
  }
}

void check(const LayoutCase& c, const Shape& shape, DType dtype, float threshold) {
  Problem problem(shape, dtype, 8);
  problem.options.skip_threshold_log2 = threshold;
  GpuProblem gpu(problem, 8);
  for (const auto& [name, plan] : plans_of(geometry_of(c, shape))) {
    for (const Executor* e : gpu_executors()) {
      SCOPED_TRACE(c.name + " " + name + " " + e->name + " D " + std::to_string(shape.D));
      const Outcome want = problem.define(plan, e->granule);
      for (const bool with_inv_l : {true, false}) {
        const Outcome got = gpu.run(e->name, plan, with_inv_l);
        EXPECT_LE(rel_l2(got.out, want.out), threshold > -kInf ? 1e-2 : 4e-3);
        if (threshold == -kInf) expect_near(got.lse, want.lse, 2e-3);
        if (with_inv_l && threshold == -kInf) expect_near(got.inv_l, want.inv_l, 5e-3);
        EXPECT_EQ(got.counts.tested, want.counts.tested);
        EXPECT_NEAR(static_cast<double>(got.counts.skipped), static_cast<double>(want.counts.skipped),
                    1.0 + 0.02 * static_cast<double>(want.counts.skipped));
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST_F(GpuLayouts, EveryExecutorMatchesTheDefinition) {
  for (const LayoutCase& c : layout_cases()) {
    for (const std::int64_t D : {64, 128}) {
      for (const DType dtype : {DType::bf16, DType::f16}) {
        check(c, {.B = 2, .H = 4, .Hk = 2, .Sq = c.tokens, .Sk = c.tokens, .D = D}, dtype, -kInf);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(GpuLayouts, SkipSoftmaxVotesOnShortTiles) {
  for (const LayoutCase& c : layout_cases()) {
    check(c, {.H = 2, .Hk = 2, .Sq = c.tokens, .Sk = c.tokens, .D = 128}, DType::bf16, -2.0F);
    if (HasFailure()) return;
  }
}

// The layout's kernels mask in every step; the others need not.
TEST_F(GpuLayouts, SmallOnesAreThePermutedProblemBitForBit) {
  const LayoutCase c{.name = "", .grid = {9, 7, 6}, .tokens = 378};
  for (const std::int64_t D : {64, 128}) {
    const Shape shape{.H = 2, .Hk = 2, .Sq = c.tokens, .Sk = c.tokens, .D = D};
    const PlanGeometry g = geometry_of(c, shape), plain = winnow::geometry_of(shape);
    const std::int32_t* tokens = g.query_tokens();
    Problem problem(shape, DType::bf16), permuted(shape, DType::bf16);
    take_rows(problem.q, tokens, permuted.q);
    take_rows(problem.k, tokens, permuted.k);
    take_rows(problem.v, tokens, permuted.v);
    GpuProblem gpu(problem), gpu_permuted(permuted);
    const auto rows = some_rows(g, 0.5, 9);
    for (const Executor* e : gpu_executors()) {
      for (const Skipped skipped : {Skipped::drop, Skipped::mean}) {
        const Outcome got = gpu.run(e->name, PlanBuilder::from_rows(g, skipped, rows));
        const Outcome want = gpu_permuted.run(e->name, PlanBuilder::from_rows(plain, skipped, rows));
        const std::int64_t width = shape.H * shape.D;
        for (std::int64_t s = 0; s < c.tokens; ++s) {
          for (std::int64_t i = 0; i < width; ++i) {
            const float x = got.out[static_cast<std::size_t>(tokens[s] * width + i)], y = want.out[static_cast<std::size_t>(s * width + i)];
            if (skipped == Skipped::drop) {
              ASSERT_EQ(x, y) << e->name;
            }
            ASSERT_NEAR(x, y, 1e-3 + 0x1p-7 * std::fabs(y)) << e->name;  // weights of means are put together differently
          }
          ASSERT_NEAR(got.lse[static_cast<std::size_t>(tokens[s])], want.lse[static_cast<std::size_t>(s)], 1e-5) << e->name;
        }
      }
    }
  }
}

TEST_F(GpuLayouts, PackedDocumentsAreSeparateCalls) {
  const std::vector<std::int64_t> documents = {0, 1, 64, 128, 193, 2290};
  const LayoutCase c{.name = "", .documents = documents, .tokens = documents.back()};
  const Shape shape{.Sq = c.tokens, .Sk = c.tokens, .D = 128};
  Problem all(shape, DType::bf16);
  GpuProblem gpu(all);
  for (const Executor* e : gpu_executors()) {
    const Outcome packed = gpu.run(e->name, TilePlan::dense(geometry_of(c, shape), DenseReason::requested));
    for (std::size_t d = 0; d + 1 < documents.size(); ++d) {
      const std::int64_t n = documents[d + 1] - documents[d];
      Problem one({.Sq = n, .Sk = n, .D = shape.D}, DType::bf16);
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(n));
      std::iota(tokens.begin(), tokens.end(), static_cast<std::int32_t>(documents[d]));
      take_rows(all.q, tokens.data(), one.q);
      take_rows(all.k, tokens.data(), one.k);
      take_rows(all.v, tokens.data(), one.v);
      GpuProblem alone(one);
      const Outcome want = alone.run(e->name, TilePlan::dense(winnow::geometry_of(one.shape), DenseReason::requested));
      EXPECT_EQ(part(packed, shape, documents[d], documents[d + 1]), want.out) << e->name << " document " << d;
    }
  }
}

TEST_F(GpuLayouts, WhatIsNotFiniteStaysInItsDocument) {
  const std::vector<TokenSpan> spans = {{0, 130, SpanKind::video}, {130, 140, SpanKind::padding}, {140, 400, SpanKind::video}};
  const LayoutCase c{.name = "", .spans = spans, .documents = {0, 140, 400}, .tokens = 400};
  const Shape shape{.Sq = c.tokens, .Sk = c.tokens, .D = 64};
  const TilePlan plan = PlanBuilder::from_rows(geometry_of(c, shape), Skipped::drop, some_rows(geometry_of(c, shape), 0.4, 4));
  Problem clean(shape, DType::bf16), dirty(shape, DType::bf16);
  for (std::int64_t i = 100 * shape.D; i < 140 * shape.D; ++i) {  // of the first document, and padding
    put(dirty.k.view, i, std::nanf(""));
    put(dirty.v.view, i, INFINITY);
    if (i >= 130 * shape.D) put(dirty.q.view, i, std::nanf(""));
  }
  GpuProblem gpu_clean(clean), gpu_dirty(dirty);
  for (const Executor* e : gpu_executors()) {
    const Outcome want = gpu_clean.run(e->name, plan), got = gpu_dirty.run(e->name, plan);
    EXPECT_EQ(part(got, shape, 140, 400), part(want, shape, 140, 400)) << e->name;
    for (const float x : part(got, shape, 130, 140)) EXPECT_EQ(x, 0.0F) << e->name;
    for (std::size_t token = 130; token < 140; ++token) {
      EXPECT_EQ(got.lse[token], -INFINITY) << e->name;
      EXPECT_EQ(got.inv_l[token], 0.0F) << e->name;
    }
  }
}

}  // namespace
}  // namespace winnow
