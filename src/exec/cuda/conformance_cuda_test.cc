// The executors of a GPU against the fp64 definition, through the public interface: shapes, layouts, dtypes, kinds of plan.
#include <cmath>
#include <memory>
#include <numbers>

#include "exec/cuda/cuda_case.h"

namespace winnow {
namespace {

constexpr DType kDtypes[] = {DType::bf16, DType::f16};

TilePlan dense(const Shape& s) { return TilePlan::dense(geometry_of(s), DenseReason::requested); }

// Tiles in all four states.
TilePlan mixed(const PlanGeometry& g, Skipped skipped) {
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
  return PlanBuilder::from_rows(g, skipped, refine, skim, excluded);
}

std::vector<std::pair<std::string, TilePlan>> plans_of(const Shape& s) {
  std::vector<std::pair<std::string, TilePlan>> plans;
  const PlanGeometry g = geometry_of(s);
  plans.emplace_back("dense", dense(s));
  plans.emplace_back("random half", PlanBuilder::from_rows(g, Skipped::drop, random_rows(g, 0.5, 1, 7)));
  plans.emplace_back("some empty", PlanBuilder::from_rows(g, Skipped::drop, random_rows(g, 0.1, 0, 9)));
  plans.emplace_back("means", PlanBuilder::from_rows(g, Skipped::mean, random_rows(g, 0.3, 1, 10)));
  plans.emplace_back("only means", PlanBuilder::from_rows(g, Skipped::mean, random_rows(g, 0.0, 0, 10)));
  plans.emplace_back("mixed", mixed(g, Skipped::mean));
  plans.emplace_back("mixed, dropping", mixed(g, Skipped::drop));
  if (s.Sk > 70) {
    PlanGeometry ragged = g;
    for (std::int64_t b = 0; b < s.B; ++b) ragged.key_lengths.push_back(b == 0 ? s.Sk - 37 : 33);
    plans.emplace_back("key lengths", TilePlan::dense(ragged, DenseReason::requested));
    plans.emplace_back("key lengths, means", PlanBuilder::from_rows(ragged, Skipped::mean, random_rows(ragged, 0.4, 0, 11)));
  }
  return plans;
}

struct Layout {
  std::int64_t pad = 0;
  bool heads_first = false;
};

void check(Problem& problem, const TilePlan& plan, const Layout& layout = {}, bool sharp = false) {
  GpuProblem gpu(problem, layout.pad, layout.heads_first);
  const Outcome want = problem.define(plan);
  const std::vector<float> in_type = in_operand_type(problem, plan);
  for (const Executor* e : gpu_executors()) {
    for (const bool with_inv_l : {true, false}) {
      SCOPED_TRACE(std::string(e->name) + (with_inv_l ? " with 1/l" : ""));
      expect_like_attention(gpu.run(e->name, plan, with_inv_l), want, in_type, problem.q.view.dtype, plan.skipped() == Skipped::mean,
                            sharp);
    }
  }
}

void check_plans(const Shape& shape, const Layout& layout = {}) {
  for (const DType dtype : kDtypes) {
    Problem problem(shape, dtype, layout.pad, layout.heads_first);
    for (const auto& [name, plan] : plans_of(shape)) {
      SCOPED_TRACE(shape.text() + " " + dtype_name(dtype) + " " + name);
      check(problem, plan, layout);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

class GpuLengths : public GpuTest, public ::testing::WithParamInterface<std::int64_t> {};
TEST_P(GpuLengths, MatchTheDefinition) {
  for (const std::int64_t D : {64, 128}) check_plans({.H = 2, .Hk = 2, .Sq = GetParam(), .Sk = GetParam(), .D = D});
}
INSTANTIATE_TEST_SUITE_P(Attend, GpuLengths, ::testing::Values(1, 63, 64, 65, 127, 128, 129, 176, 1000));

using GpuConformance = GpuTest;

TEST_F(GpuConformance, LongSequence) {
  for (const std::int64_t D : {64, 128}) {
    for (const DType dtype : kDtypes) {
      const Shape shape = {.Sq = 4097, .Sk = 4097, .D = D};
      Problem problem(shape, dtype);
      SCOPED_TRACE(shape.text() + " " + dtype_name(dtype));
      check(problem, dense(shape));
      check(problem, PlanBuilder::from_rows(geometry_of(shape), Skipped::mean, random_rows(geometry_of(shape), 0.2, 1, 3)));
    }
  }
}

TEST_F(GpuConformance, CrossLengths) {
  for (const auto& [Sq, Sk] : {std::pair{300, 77}, {77, 300}, {1, 4096}, {1000, 1}}) check_plans({.Sq = Sq, .Sk = Sk, .D = 128});
  check_plans({.Sq = 1, .Sk = 9000, .D = 64});  // more virtual keys than a step holds
}

TEST_F(GpuConformance, GroupedHeadsAndBatches) {
  check_plans({.B = 2, .H = 6, .Hk = 2, .Sq = 200, .Sk = 330, .D = 128});
  check_plans({.B = 2, .H = 4, .Hk = 1, .Sq = 200, .Sk = 330, .D = 64});
}

TEST_F(GpuConformance, StridedViews) {
  const Shape shape = {.B = 2, .H = 4, .Hk = 2, .Sq = 333, .Sk = 200, .D = 128};
  check_plans(shape, {.pad = 8});
  check_plans(shape, {.heads_first = true});
  check_plans({.B = 2, .H = 4, .Hk = 2, .Sq = 333, .Sk = 200, .D = 64}, {.pad = 24, .heads_first = true});
}

// So many rows that a persistent CTA takes several, and that CTAs work in pairs on the dense plan.
TEST_F(GpuConformance, ManyRows) {
  for (const std::int64_t Sq : {250, 300}) {  // an even and an odd number of query tiles
    for (const std::int64_t D : {64, 128}) {
      const Shape shape = {.B = 2, .H = 140, .Hk = 20, .Sq = Sq, .Sk = 250, .D = D};
      Problem problem(shape, DType::bf16);
      SCOPED_TRACE(shape.text());
      PlanGeometry g = geometry_of(shape);
      check(problem, dense(shape));
      check(problem, PlanBuilder::from_rows(g, Skipped::drop, random_rows(g, 0.6, 0, 4)));
      g.key_lengths = {77, 250};
      check(problem, TilePlan::dense(g, DenseReason::requested));
    }
  }
}

TEST_F(GpuConformance, LogitsToTenThousand) {
  for (const std::int64_t D : {64, 128}) {
    for (const DType dtype : kDtypes) {
      const Shape shape = {.H = 2, .Hk = 2, .Sq = 500, .Sk = 1000, .D = D};
      Problem problem(shape, dtype);
      problem.q.fill_random(1, D == 64 ? 400.0F : 300.0F);
      const TilePlan plan = dense(shape);
      EXPECT_GT(std::ranges::max(problem.define(plan).lse), 1000.0F);
      SCOPED_TRACE(shape.text() + " " + dtype_name(dtype));
      check(problem, plan, {}, true);
    }
  }
}

// One head of a problem whose heads share K and V.
std::unique_ptr<Problem> head_of(const Problem& all, std::int64_t h) {
  const Shape& s = all.shape;
  auto one = std::make_unique<Problem>(Shape{.Sq = s.Sq, .Sk = s.Sk, .D = s.D}, all.q.view.dtype);
  one->k.each([&](std::int64_t at) { put(one->k.view, at, get(all.k.view, at)); });
  one->v.each([&](std::int64_t at) { put(one->v.view, at, get(all.v.view, at)); });
  one->q.each([&](std::int64_t at) { put(one->q.view, at, get(all.q.view, (at / s.D * s.H + h) * s.D + at % s.D)); });
  return one;
}

Outcome head_of(const Outcome& all, const Shape& s, std::int64_t h) {
  Outcome one;
  for (std::int64_t i = 0; i < s.Sq; ++i) {
    const auto from = all.out.begin() + (i * s.H + h) * s.D;
    one.out.insert(one.out.end(), from, from + s.D);
  }
  one.lse.assign(all.lse.begin() + h * s.Sq, all.lse.begin() + (h + 1) * s.Sq);
  return one;
}

// Every tile raises the maximum: by little, by much, and by more than sums can follow. 300 heads: CTAs work in pairs.
TEST_F(GpuConformance, GrowingMaxima) {
  for (const float peak : {5.0F, 20.0F, 60.0F, 300.0F}) {
    for (const DType dtype : kDtypes) {
      const Shape shape = {.H = 300, .Hk = 1, .Sq = 200, .Sk = 1500, .D = 128};
      Problem problem(shape, dtype);
      problem.q.each([&](std::int64_t at) { put(problem.q.view, at, std::fabs(get(problem.q.view, at))); });
      problem.k.each([&](std::int64_t at) {
        const float position = static_cast<float>(at / shape.D) / static_cast<float>(shape.Sk);
        put(problem.k.view, at, std::fabs(get(problem.k.view, at)) * peak * (1.0F - std::fabs(2.0F * position - 1.0F)));
      });
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " peak " + std::to_string(peak));
      GpuProblem gpu(problem);
      std::vector<Outcome> outcomes;
      for (const Executor* e : gpu_executors()) outcomes.push_back(gpu.run(e->name, dense(shape), false));
      for (const std::int64_t h : {std::int64_t{0}, shape.H - 1}) {
        const auto one = head_of(problem, h);
        const TilePlan plan = dense(one->shape);
        const Outcome want = one->define(plan);
        for (const Outcome& all : outcomes) {
          expect_like_attention(head_of(all, shape, h), want, in_operand_type(*one, plan), dtype, false, true);
        }
        check(*one, plan, {}, true);
        check(*one, PlanBuilder::from_rows(plan.geometry(), Skipped::mean, random_rows(plan.geometry(), 0.5, 1, 3)), {}, true);
      }
    }
  }
}

// One key outgrows all others: by what sums can follow, and by more. Whether the reference moves is decided in the middle of a step,
// so it matters which column the key has, and whether another step comes after it (the last one here holds keys 256 to 383).
TEST_F(GpuConformance, OneLargeKey) {
  for (const float exponents_of_2 : {30.0F, 80.0F, 150.0F}) {
    for (const std::int64_t key : {8, 100, 260, 350, 383, 500}) {
      for (const DType dtype : kDtypes) {
        const Shape shape = {.Sq = 130, .Sk = 512, .D = 128};
        Problem problem(shape, dtype);
        const float large = exponents_of_2 / (std::sqrt(128.0F) * std::numbers::log2e_v<float>);
        problem.q.each([&](std::int64_t at) { put(problem.q.view, at, 1.0F); });
        problem.k.each([&](std::int64_t at) { put(problem.k.view, at, at / shape.D == key ? large : get(problem.k.view, at) * 0.1F); });
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " 2^" + std::to_string(exponents_of_2) + " key " + std::to_string(key));
        GpuProblem gpu(problem);
        const Outcome want = problem.define(dense(shape));
        for (const Executor* e : gpu_executors()) {
          for (const bool with_inv_l : {true, false}) {
            const Outcome got = gpu.run(e->name, dense(shape), with_inv_l);
            EXPECT_LE(rel_l2(got.out, want.out), dtype == DType::bf16 ? 6e-3 : 8e-4) << e->name;
            EXPECT_LE(largest_difference(got.lse, want.lse), 2e-4) << e->name;
            if (with_inv_l) {
              EXPECT_LE(largest_difference(got.inv_l, want.inv_l), 1e-3) << e->name;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace winnow
