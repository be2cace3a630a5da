// Every executor of this machine against the fp64 definition: shapes, layouts, dtypes and kinds of plan.
#include "exec/attend_case.h"

namespace winnow {
namespace {

// The plans that every shape is run with.
std::vector<std::pair<std::string, TilePlan>> plans_of(const Shape& s) {
  std::vector<std::pair<std::string, TilePlan>> plans;
  const PlanGeometry g = geometry_of(s);
  plans.emplace_back("dense", TilePlan::dense(g, DenseReason::requested));
  plans.emplace_back("random half", PlanBuilder::from_rows(g, Skipped::drop, random_rows(g, 0.5, 1, 7)));
  plans.emplace_back("one tile", PlanBuilder::from_rows(g, Skipped::drop, random_rows(g, 0.0, 1, 8)));
  plans.emplace_back("some empty", PlanBuilder::from_rows(g, Skipped::drop, random_rows(g, 0.2, 0, 9)));
  plans.emplace_back("means", PlanBuilder::from_rows(g, Skipped::mean, random_rows(g, 0.3, 1, 10)));
  plans.emplace_back("only means", PlanBuilder::from_rows(g, Skipped::mean, random_rows(g, 0.0, 0, 10)));
  // Thirds: refine, skim, excluded, and what remains is represented.
  std::vector<std::vector<std::int32_t>> refine(static_cast<std::size_t>(g.rows()));
  auto skim = refine;
  auto excluded = refine;
  for (std::size_t r = 0; r < refine.size(); ++r) {
    for (std::int32_t t = 0; t < g.Gk(); ++t) {
      const auto which = (static_cast<std::size_t>(t) * 7 + r * 3) % 4;
      if (which == 0) refine[r].push_back(t);
      if (which == 1) skim[r].push_back(t);
      if (which == 2) excluded[r].push_back(t);
    }
  }
  plans.emplace_back("mixed", PlanBuilder::from_rows(g, Skipped::mean, refine, skim, excluded));
  plans.emplace_back("mixed, dropping", PlanBuilder::from_rows(g, Skipped::drop, refine, skim, excluded));
  if (s.Sk > 70) {
    PlanGeometry ragged = g;
    for (std::int64_t b = 0; b < s.B; ++b) ragged.key_lengths.push_back(b == 0 ? s.Sk - 37 : 33);
    plans.emplace_back("key lengths", TilePlan::dense(ragged, DenseReason::requested));
    plans.emplace_back("key lengths, means", PlanBuilder::from_rows(ragged, Skipped::mean, random_rows(ragged, 0.4, 0, 11)));
    const PlanGeometry wide = geometry_of(s, 128, 64);
    plans.emplace_back("wide tiles", PlanBuilder::from_rows(wide, Skipped::mean, random_rows(wide, 0.5, 1, 12)));
    PlanGeometry odd = geometry_of(s, 96, 32);
    odd.tile_q = 200;
    plans.emplace_back("odd tiles", PlanBuilder::from_rows(odd, Skipped::mean, random_rows(odd, 0.5, 1, 13)));
    PlanGeometry small = geometry_of(s, 16, 8);
    small.tile_q = 24;
    plans.emplace_back("small tiles", PlanBuilder::from_rows(small, Skipped::mean, random_rows(small, 0.5, 1, 14)));
  }
  return plans;
}

void check_shape(const Shape& shape, DType dtype) {
  for (const auto& [name, plan] : plans_of(shape)) {
    SCOPED_TRACE(shape.text() + " " + dtype_name(dtype) + " " + name);
    Problem problem(shape, dtype);
    const Outcome want = problem.define(plan);
    for (const Executor* e : executors_for(dtype)) {
      SCOPED_TRACE(e->name);
      expect_close(problem.run(e->name, plan), want, *e);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

class Lengths : public ::testing::TestWithParam<std::int64_t> {};
TEST_P(Lengths, MatchTheDefinition) {
  const std::int64_t S = GetParam();
  check_shape({.Sq = S, .Sk = S, .D = 64}, DType::f32);
  check_shape({.Sq = S, .Sk = S, .D = 128}, DType::bf16);
}
INSTANTIATE_TEST_SUITE_P(Attend, Lengths, ::testing::Values(1, 63, 64, 65, 127, 128, 129, 176, 1000));

TEST(Conformance, LongSequence) {
  const Shape shape = {.Sq = 129, .Sk = 4097, .D = 64};
  check_shape(shape, DType::bf16);
}

TEST(Conformance, CrossLengths) {
  check_shape({.Sq = 300, .Sk = 77, .D = 64}, DType::bf16);
  check_shape({.Sq = 77, .Sk = 300, .D = 64}, DType::bf16);
  check_shape({.Sq = 1, .Sk = 515, .D = 64}, DType::f32);
}

TEST(Conformance, HeadDims) {
  for (const std::int64_t D : {1, 12, 31, 64, 72, 128, 200, 256}) {
    check_shape({.Sq = 150, .Sk = 170, .D = D}, DType::bf16);
    check_shape({.Sq = 150, .Sk = 170, .D = D}, DType::f32);
  }
}

TEST(Conformance, GroupedHeadsAndBatches) {
  check_shape({.B = 2, .H = 3, .Hk = 1, .Sq = 140, .Sk = 200, .D = 32}, DType::bf16);
  check_shape({.B = 1, .H = 28, .Hk = 4, .Sq = 70, .Sk = 130, .D = 16}, DType::bf16);
  check_shape({.B = 3, .H = 4, .Hk = 2, .Sq = 40, .Sk = 130, .D = 24}, DType::f32);
}

TEST(Conformance, F16) { check_shape({.B = 2, .H = 2, .Hk = 2, .Sq = 130, .Sk = 200, .D = 72}, DType::f16); }

TEST(Conformance, ManyHeadsInSeveralGroups) {  // more packed keys than one group holds
  const Shape shape = {.B = 2, .H = 40, .Hk = 40, .Sq = 5, .Sk = 4000, .D = 256};
  Problem problem(shape, DType::bf16);
  const PlanGeometry g = geometry_of(shape);
  const TilePlan plan = PlanBuilder::from_rows(g, Skipped::mean, random_rows(g, 0.02, 1, 3));
  const Outcome want = problem.define(plan);
  const Executor* e = executors_for(DType::bf16).front();
  expect_close(problem.run(e->name, plan), want, *e);
}

TEST(Conformance, StridedViews) {
  const Shape shape = {.B = 2, .H = 4, .Hk = 2, .Sq = 150, .Sk = 170, .D = 40};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const std::int64_t pad : {1, 3, 24}) {
      Problem problem(shape, dtype, pad);
      const PlanGeometry g = geometry_of(shape);
      const TilePlan plan = PlanBuilder::from_rows(g, Skipped::mean, random_rows(g, 0.5, 1, 3));
      const Outcome want = problem.define(plan);
      for (const Executor* e : executors_for(dtype)) {
        SCOPED_TRACE(std::string(e->name) + " pad " + std::to_string(pad));
        expect_close(problem.run(e->name, plan, DType::f32, pad), want, *e);
      }
    }
  }
}

// q, k and v as slices of one [B,S,3,H,D] buffer, out as [B,H,S,D] transposed.
TEST(Conformance, FusedQkvAndTransposedOut) {
  const std::int64_t B = 2;
  const std::int64_t S = 150;
  const std::int64_t H = 3;
  const std::int64_t D = 64;
  Buffer fused(DType::bf16, {B, S, 3 * H, D});
  fused.fill_random(5);
  Tensor q(DType::bf16, {B, S, H, D});
  Tensor k(DType::bf16, {B, S, H, D});
  Tensor v(DType::bf16, {B, S, H, D});
  const TensorView slices[] = {fused.view.slice(2, 0, H), fused.view.slice(2, H, 2 * H), fused.view.slice(2, 2 * H, 3 * H)};
  const TensorView copies[] = {q, k, v};
  for (int i = 0; i < 3; ++i) {
    std::int64_t at = 0;
    for (std::int64_t b = 0; b < B; ++b)
      for (std::int64_t s = 0; s < S; ++s)
        for (std::int64_t h = 0; h < H; ++h)
          for (std::int64_t d = 0; d < D; ++d)
            put(copies[i], at++, get(slices[i], b * slices[i].stride(0) + s * slices[i].stride(1) + h * slices[i].stride(2) + d));
  }
  PlanGeometry g;
  g.B = B;
  g.H = H;
  g.Sq = g.Sk = S;
  const TilePlan plan = TilePlan::dense(g, DenseReason::requested);
  Workspace ws;
  for (const Executor* e : executors_for(DType::bf16)) {
    Tensor a(DType::f32, {B, S, H, D});
    Tensor b(DType::f32, {B, H, S, D});
    AttendOptions options;
    options.executor = e->name;
    attend(plan, q, k, v, a, options, ws);
    TensorView transposed = b.view();
    std::swap(transposed.shape[1], transposed.shape[2]);
    std::swap(transposed.strides[1], transposed.strides[2]);
    attend(plan, slices[0], slices[1], slices[2], transposed, options, ws);
    for (std::int64_t i = 0; i < a.numel(); ++i) {
      const std::int64_t d = i % D;
      const std::int64_t h = i / D % H;
      const std::int64_t s = i / (D * H) % S;
      ASSERT_EQ(a.as<float>()[i], b.as<float>()[(((i / (D * H * S)) * H + h) * S + s) * D + d]) << e->name << " " << i;
    }
  }
}

TEST(Conformance, OutputDtypes) {
  const Shape shape = {.H = 2, .Hk = 2, .Sq = 100, .Sk = 150, .D = 72};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Problem problem(shape, dtype);
    const TilePlan plan = TilePlan::dense(geometry_of(shape), DenseReason::requested);
    for (const Executor* e : executors_for(dtype)) {
      SCOPED_TRACE(e->name);
      const Outcome exact = problem.run(e->name, plan, DType::f32);
      const Outcome as_bf16 = problem.run(e->name, plan, DType::bf16, 5);
      const Outcome as_f16 = problem.run(e->name, plan, DType::f16, 5);
      for (std::size_t i = 0; i < exact.out.size(); ++i) {
        ASSERT_EQ(as_bf16.out[i], round_bf16(exact.out[i]));
        ASSERT_EQ(as_f16.out[i], to_f32(to_f16(exact.out[i])));
      }
    }
  }
}

TEST(Conformance, Scales) {
  const Shape shape = {.Sq = 60, .Sk = 150, .D = 16};
  for (const float scale : {1.0F, -0.25F, 0.0F, 3.0F}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Problem problem(shape, dtype);
      problem.options.scale = scale;
      const TilePlan plan = TilePlan::dense(geometry_of(shape), DenseReason::requested);
      const Outcome want = problem.define(plan);
      for (const Executor* e : executors_for(dtype)) {
        SCOPED_TRACE(std::string(e->name) + " " + std::to_string(scale));
        expect_close(problem.run(e->name, plan), want, *e, 2.0);
      }
    }
  }
}

}  // namespace
}  // namespace winnow
