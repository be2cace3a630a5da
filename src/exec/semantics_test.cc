// What attention over a plan means, checked on every executor without looking at how it is computed: structure, the skip test,
// non-finite and huge values, determinism.
#include "exec/attend_case.h"
#include "winnow/error.h"
#include "winnow/threads.h"

namespace winnow {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr DType kDtypes[] = {DType::f32, DType::bf16};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}
bool same_bits(const Outcome& a, const Outcome& b) {
  return same_bits(a.out, b.out) && same_bits(a.lse, b.lse) && same_bits(a.inv_l, b.inv_l);
}

TilePlan dense(const Shape& s) { return TilePlan::dense(geometry_of(s), DenseReason::requested); }

// V is the one-hot of the key block: the output is the softmax mass of each block, and sums to 1 over the listed ones.
TEST(Semantics, OneHotValuesGiveTheMassOfEveryBlock) {
  const Shape shape = {.Sq = 140, .Sk = 500, .D = 32};
  for (const DType dtype : kDtypes) {
    Problem problem(shape, dtype);
    std::int64_t i = 0;
    problem.v.each([&](std::int64_t at) {
      put(problem.v.view, at, i / shape.D / 64 == i % shape.D ? 1.0F : 0.0F);
      ++i;
    });
    const PlanGeometry g = geometry_of(shape);
    const auto rows = random_rows(g, 0.5, 1, 3);
    const TilePlan plan = PlanBuilder::from_rows(g, Skipped::drop, rows);
    for (const Executor* e : executors_for(dtype)) {
      const Outcome got = problem.run(e->name, plan);
      for (std::int64_t q = 0; q < shape.Sq; ++q) {
        float sum = 0.0F;
        const auto& listed = rows[static_cast<std::size_t>(q / 128)];
        for (std::int32_t tile = 0; tile < 32; ++tile) {
          const float mass = got.out[static_cast<std::size_t>(q * 32 + tile)];
          const bool computed = std::find(listed.begin(), listed.end(), tile) != listed.end();
          ASSERT_EQ(mass > 0.0F, computed) << e->name << " query " << q << " tile " << tile;
          sum += mass;
        }
        ASSERT_NEAR(sum, 1.0F, computes_in_bf16(*e) ? 2e-3 : 1e-6) << e->name << " query " << q;
      }
    }
  }
}

TEST(Semantics, ConstantValuesComeBack) {
  const Shape shape = {.H = 2, .Hk = 1, .Sq = 140, .Sk = 300, .D = 72};
  for (const DType dtype : kDtypes) {
    Problem problem(shape, dtype);
    problem.v.each([&](std::int64_t at) { put(problem.v.view, at, 1.5F); });
    const PlanGeometry g = geometry_of(shape);
    for (const Skipped skipped : {Skipped::drop, Skipped::mean}) {
      const TilePlan plan = PlanBuilder::from_rows(g, skipped, random_rows(g, 0.5, 1, 3));
      for (const Executor* e : executors_for(dtype)) {
        for (const float x : problem.run(e->name, plan).out) ASSERT_NEAR(x, 1.5F, computes_in_bf16(*e) ? 5e-3 : 2e-6) << e->name;
      }
    }
  }
}

// With equal keys and values inside every block, means lose nothing.
TEST(Semantics, MeansOfEqualKeysAreExact) {
  const Shape shape = {.Sq = 140, .Sk = 420, .D = 64};
  for (const DType dtype : kDtypes) {
    Problem problem(shape, dtype);
    for (Buffer* t : {&problem.k, &problem.v}) {
      for (std::int64_t key = 0; key < shape.Sk; ++key) {
        for (std::int64_t d = 0; d < shape.D; ++d) put(t->view, key * shape.D + d, get(t->view, key / 64 * 64 * shape.D + d));
      }
    }
    const PlanGeometry g = geometry_of(shape);
    const TilePlan plan = PlanBuilder::from_rows(g, Skipped::mean, random_rows(g, 0.4, 0, 3));
    Outcome want = problem.define(dense(shape));
    want.inv_l = problem.define(plan).inv_l;  // a virtual key is one key with a larger weight
    for (const Executor* e : executors_for(dtype)) {
      SCOPED_TRACE(e->name);
      expect_close(problem.run(e->name, plan), want, *e);
    }
  }
}

TEST(Semantics, FullListsAreBitwiseDense) {
  const Shape shape = {.B = 2, .H = 2, .Hk = 1, .Sq = 700, .Sk = 500, .D = 64};
  for (const DType dtype : kDtypes) {
    Problem problem(shape, dtype);
    PlanGeometry g = geometry_of(shape);
    g.key_lengths = {500, 300};
    const TilePlan identity = TilePlan::dense(g, DenseReason::requested);
    const TilePlan lists = PlanBuilder::from_rows(g, Skipped::drop, random_rows(g, 1.0, 1, 3));
    const TilePlan with_means = PlanBuilder::from_rows(g, Skipped::mean, random_rows(g, 1.0, 1, 3));
    for (const Executor* e : executors_for(dtype)) {
      const Outcome want = problem.run(e->name, identity);
      EXPECT_TRUE(same_bits(problem.run(e->name, lists), want)) << e->name;
      EXPECT_TRUE(same_bits(problem.run(e->name, with_means), want)) << e->name;
    }
  }
}

TEST(Semantics, OrderOfListsDoesNotMatter) {
  const Shape shape = {.Sq = 200, .Sk = 900, .D = 64};
  const PlanGeometry g = geometry_of(shape);
  auto rows = random_rows(g, 0.6, 1, 3);
  const TilePlan plan = PlanBuilder::from_rows(g, Skipped::drop, rows);
  for (auto& row : rows) std::reverse(row.begin(), row.end());
  const TilePlan reversed = PlanBuilder::from_rows(g, Skipped::drop, rows);
  Problem problem(shape, DType::bf16);
  for (const Executor* e : executors_for(DType::bf16)) {
    EXPECT_TRUE(same_bits(problem.run(e->name, plan), problem.run(e->name, reversed))) << e->name;
  }
}

TEST(Semantics, RowsAreIndependent) {  // a row's result does not depend on what its neighbours list
  const Shape shape = {.Sq = 1100, .Sk = 600, .D = 64};
  const PlanGeometry g = geometry_of(shape);
  auto rows = random_rows(g, 1.0, 1, 3);
  Problem problem(shape, DType::bf16);
  for (const Executor* e : executors_for(DType::bf16)) {
    const Outcome want = problem.run(e->name, dense(shape));
    auto some = rows;
    some[3] = {1};
    some[6] = {};
    const Outcome got = problem.run(e->name, PlanBuilder::from_rows(g, Skipped::drop, some));
    for (std::int64_t q = 0; q < shape.Sq; ++q) {
      if (q / 128 == 3 || q / 128 == 6) continue;
      ASSERT_EQ(std::memcmp(&got.out[static_cast<std::size_t>(q * 64)], &want.out[static_cast<std::size_t>(q * 64)], 64 * sizeof(float)), 0)
          << e->name << " query " << q;
    }
  }
}

TEST(Semantics, SkipTestMatchesTheDefinition) {
  const Shape shape = {.H = 2, .Hk = 1, .Sq = 300, .Sk = 1300, .D = 64};
  for (const DType dtype : kDtypes) {
    Problem problem(shape, dtype);
    problem.options.scale = 0.25F;  // peaked enough for tiles to be skipped
    // Levels per key tile, far apart, so that rounding decides no vote.
    problem.k.each([&](std::int64_t at) {
      const std::int64_t tile = at / shape.D / 64;
      put(problem.k.view, at, get(problem.k.view, at) * (tile % 5 == 2 ? 0.25F : 1.0F));
    });
    PlanGeometry wide = geometry_of(shape, 128, 64);
    const PlanGeometry g = geometry_of(shape);
    std::vector<TilePlan> plans;
    plans.push_back(TilePlan::dense(g, DenseReason::requested));
    plans.push_back(TilePlan::dense(wide, DenseReason::requested));
    plans.push_back(PlanBuilder::from_rows(g, Skipped::mean, random_rows(g, 0.6, 1, 3), {}, {}));
    for (const TilePlan& plan : plans) {
      for (const Executor* e : executors_for(dtype)) {
        problem.options.skip_threshold_log2 = -5.0F;
        const Outcome want = problem.define(plan, e->granule);
        const Outcome got = problem.run(e->name, plan);
        SCOPED_TRACE(std::string(e->name) + " " + plan.describe());
        EXPECT_EQ(got.counts.tested, want.counts.tested);
        EXPECT_EQ(got.counts.skipped, want.counts.skipped);
        EXPECT_GT(got.counts.skipped, 0);
        EXPECT_LT(got.counts.skipped, got.counts.tested);
        expect_close(got, want, *e, 2.0);
        problem.options.skip_threshold_log2 = -kInf;
      }
    }
  }
}

TEST(Semantics, OnePassTellsWhatEveryThresholdSkips) {
  const Shape shape = {.B = 2, .H = 2, .Hk = 1, .Sq = 300, .Sk = 700, .D = 40};
  for (const DType dtype : kDtypes) {
    Problem problem(shape, dtype);
    problem.options.scale = 0.25F;
    put(problem.k.view, 500 * shape.D, kInf);  // a granule that is never skipped
    const TilePlan plan = dense(shape);
    std::vector<const Executor*> all = executors_for(dtype);
    for (const Executor& e : executor_records()) {
      if (e.only_by_name) all.push_back(&e);
    }
    for (const Executor* e : all) {
      const auto blocks = [](std::int64_t n, int unit) { return (n + unit - 1) / unit; };
      const Tensor gaps(DType::f32, {shape.B, shape.H, blocks(shape.Sq, e->granule.rows), blocks(shape.Sk, e->granule.keys)});
      const Outcome plain = problem.run(e->name, plan);
      problem.options.skip_gaps_log2 = gaps;
      EXPECT_TRUE(same_bits(problem.run(e->name, plan), plain)) << e->name;
      problem.options.skip_gaps_log2 = {};
      std::int64_t last = -1;
      for (const float threshold : {-8.0F, -2.0F, 0.0F}) {
        problem.options.skip_threshold_log2 = threshold;
        const Outcome got = problem.run(e->name, plan);
        const std::span<const float> all_gaps(gaps.as<float>(), static_cast<std::size_t>(gaps.numel()));
        EXPECT_EQ(got.counts.tested, gaps.numel()) << e->name;
        EXPECT_EQ(got.counts.skipped, std::ranges::count_if(all_gaps, [&](float gap) { return gap < threshold; }))
            << e->name << " " << threshold;
        EXPECT_GE(got.counts.skipped, last);
        last = got.counts.skipped;
      }
      EXPECT_GT(last, 0);
      EXPECT_LT(last, gaps.numel());
      problem.options.skip_threshold_log2 = -kInf;
    }
  }
}

TEST(Semantics, SkippingNothingIsBitwiseNoTest) {
  const Shape shape = {.Sq = 300, .Sk = 1300, .D = 64};
  for (const DType dtype : kDtypes) {
    Problem problem(shape, dtype);
    const TilePlan plan = dense(shape);
    for (const Executor* e : executors_for(dtype)) {
      problem.options.skip_threshold_log2 = -kInf;
      const Outcome off = problem.run(e->name, plan);
      EXPECT_EQ(off.counts.tested, 0);
      problem.options.skip_threshold_log2 = -1e30F;
      const Outcome on = problem.run(e->name, plan);
      EXPECT_GT(on.counts.tested, 0);
      EXPECT_EQ(on.counts.skipped, 0);
      EXPECT_TRUE(same_bits(off, on)) << e->name;
    }
  }
}

// A threshold of 1 (0 in log2) still computes the first tile, and every tile with a new maximum.
TEST(Semantics, TheFirstTileIsNeverSkipped) {
  const Shape shape = {.Sq = 100, .Sk = 640, .D = 16};
  for (const DType dtype : kDtypes) {
    Problem problem(shape, dtype);
    problem.q.each([&](std::int64_t at) { put(problem.q.view, at, 1.0F); });
    problem.k.each([&](std::int64_t at) { put(problem.k.view, at, at / shape.D < 64 ? 1.0F : 0.5F); });
    problem.options.skip_threshold_log2 = 0.0F;
    PlanGeometry first = geometry_of(shape);
    const TilePlan only_first = PlanBuilder::from_rows(first, Skipped::drop, {{0}});
    for (const Executor* e : executors_for(dtype)) {
      const Outcome got = problem.run(e->name, dense(shape));
      EXPECT_EQ(got.counts.skipped * 10, got.counts.tested * 9) << e->name;
      EXPECT_TRUE(same_bits(got, problem.run(e->name, only_first))) << e->name;
    }
  }
}

// The definition skips in the order that an executor's record names.
TEST(Semantics, TheGranuleSaysWhatComesFirst) {
  using Order = SkipGranule::Order;
  const Shape shape = {.Sq = 100, .Sk = 5 * 64, .D = 16};
  Problem problem(shape, DType::f32);
  problem.q.each([&](std::int64_t at) { put(problem.q.view, at, 1.0F); });
  problem.options.skip_threshold_log2 = 0.0F;
  const auto skipped = [&](const TilePlan& plan, std::int64_t large_tile, SkipGranule granule) {
    problem.k.each([&](std::int64_t at) { put(problem.k.view, at, at / shape.D / 64 == large_tile ? 1.0F : 0.5F); });
    return problem.define(plan, granule).counts.skipped;
  };
  // Units of two tiles: 01 23 4 or 4 01 23.
  EXPECT_EQ(skipped(dense(shape), 4, {128, 128, Order::ascending}), 0);
  EXPECT_EQ(skipped(dense(shape), 4, {128, 128, Order::last_first}), 2);
  EXPECT_EQ(skipped(dense(shape), 0, {128, 128, Order::ascending}), 2);
  EXPECT_EQ(skipped(dense(shape), 0, {128, 128, Order::last_first}), 1);
  const TilePlan both = PlanBuilder::from_rows(geometry_of(shape), Skipped::drop, {{1, 3}}, {{0}});
  EXPECT_EQ(skipped(both, 0, {128, 64, Order::tiers}), 0);
  EXPECT_EQ(skipped(both, 0, {128, 64, Order::ascending}), 2);
}

TEST(Semantics, HugeLogits) {
  const Shape shape = {.Sq = 60, .Sk = 300, .D = 16};
  for (const DType dtype : kDtypes) {
    Problem problem(shape, dtype);
    // Integers: products and sums are exact in every executor, so that only the softmax is tested. Logits up to 1e4.
    problem.q.each([&](std::int64_t at) { put(problem.q.view, at, std::round(8.0F * get(problem.q.view, at))); });
    problem.k.each([&](std::int64_t at) { put(problem.k.view, at, std::round(40.0F * get(problem.k.view, at))); });
    for (const float sign : {1.0F, -1.0F}) {
      problem.options.scale = 2.0F * sign;
      const TilePlan plan = dense(shape);
      const Outcome want = problem.define(plan);
      EXPECT_GT(*std::max_element(want.lse.begin(), want.lse.end()), 5000.0F);
      for (const Executor* e : executors_for(dtype)) {
        SCOPED_TRACE(e->name);
        const Outcome got = problem.run(e->name, plan);
        EXPECT_LE(rel_l2(got.out, want.out), computes_in_bf16(*e) ? 4e-3 : 1e-5);
        for (std::size_t i = 0; i < got.lse.size(); ++i) {
          ASSERT_NEAR(got.lse[i], want.lse[i], 2e-3);
          ASSERT_NEAR(got.inv_l[i], want.inv_l[i], 2e-3);
        }
      }
    }
  }
}

TEST(Semantics, GrowingMaximaRescale) {  // every tile raises the maximum by far more than lazy rescaling lets pass
  const Shape shape = {.Sq = 70, .Sk = 700, .D = 16};
  for (const DType dtype : kDtypes) {
    Problem problem(shape, dtype);
    problem.q.each([&](std::int64_t at) { put(problem.q.view, at, 1.0F); });
    problem.k.each([&](std::int64_t at) {
      const std::int64_t key = at / shape.D;
      put(problem.k.view, at, static_cast<float>(key / 64) + 0.25F * static_cast<float>(key % 5));
    });
    problem.options.scale = 1.0F;
    const TilePlan plan = dense(shape);
    const Outcome want = problem.define(plan);
    for (const Executor* e : executors_for(dtype)) {
      SCOPED_TRACE(e->name);
      expect_close(problem.run(e->name, plan), want, *e, 4.0);
    }
  }
}

TEST(Semantics, NonFiniteInputsReachExactlyTheRowsThatUseThem) {
  const Shape shape = {.Sq = 300, .Sk = 400, .D = 24};
  const PlanGeometry g = geometry_of(shape);
  const TilePlan plan = PlanBuilder::from_rows(g, Skipped::drop, {{0, 1, 2, 3, 4, 5, 6}, {0, 1, 5}, {2, 4, 6}});
  const std::int64_t D = shape.D;
  for (const DType dtype : kDtypes) {
    for (const float bad : {std::nanf(""), kInf, -kInf}) {
      for (const float threshold : {-kInf, -3.0F}) {
        for (const Executor* e : executors_for(dtype)) {
          SCOPED_TRACE(std::string(e->name) + " " + std::to_string(bad) + " " + std::to_string(threshold));
          const auto non_finite_rows = [&](auto poison) {
            Problem problem(shape, dtype);
            problem.options.skip_threshold_log2 = threshold;
            problem.options.scale = 1.0F;
            poison(problem);
            const Outcome got = problem.run(e->name, plan);
            std::vector<std::int64_t> rows;
            for (std::int64_t q = 0; q < shape.Sq; ++q) {
              int finite = 0;
              for (std::int64_t d = 0; d < D; ++d) finite += std::isfinite(got.out[static_cast<std::size_t>(q * D + d)]) ? 1 : 0;
              if (finite < D) rows.push_back(q);
            }
            return rows;
          };
          const auto from_q = non_finite_rows([&](Problem& p) { put(p.q.view, 130 * D + 5, bad); });
          EXPECT_EQ(from_q, std::vector<std::int64_t>{130});
          // Key 140 lies in tile 2: query tiles 0 and 2 compute it. A key of -inf or +inf gives logits of both signs.
          const auto from_k = non_finite_rows([&](Problem& p) { put(p.k.view, 140 * D + 5, bad); });
          const auto from_v = non_finite_rows([&](Problem& p) { put(p.v.view, 140 * D + 5, bad); });
          if (std::isnan(bad)) {
            EXPECT_EQ(from_k.size(), 128U + 44U);
          }
          for (const auto& rows : {from_k, from_v}) {
            EXPECT_FALSE(rows.empty() && threshold == -kInf);
            for (const std::int64_t q : rows) ASSERT_NE(q / 128, 1) << q;
          }
          if (threshold == -kInf) {
            EXPECT_EQ(from_v.size(), 128U + 44U);
          }
        }
      }
    }
  }
}

TEST(Semantics, MinusInfinityLogitsHaveNoWeight) {
  const Shape shape = {.Sq = 40, .Sk = 200, .D = 8};
  for (const DType dtype : kDtypes) {
    Problem problem(shape, dtype);
    problem.q.each([&](std::int64_t at) { put(problem.q.view, at, 1.0F); });
    for (std::int64_t key = 0; key < 70; ++key) put(problem.k.view, key * shape.D, -kInf);  // a whole first tile, and more
    const TilePlan plan = dense(shape);
    const Outcome want = problem.define(plan);
    for (const float x : want.out) ASSERT_TRUE(std::isfinite(x));
    for (const Executor* e : executors_for(dtype)) {
      SCOPED_TRACE(e->name);
      expect_close(problem.run(e->name, plan), want, *e);
    }
  }
}

TEST(Semantics, KeysPastTheLengthAreNeverRead) {
  const Shape shape = {.B = 2, .Sq = 100, .Sk = 300, .D = 16};
  for (const DType dtype : kDtypes) {
    Problem problem(shape, dtype);
    PlanGeometry g = geometry_of(shape);
    g.key_lengths = {101, 0};
    for (Buffer* t : {&problem.k, &problem.v}) {
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t i = g.keys(b) * shape.D; i < shape.Sk * shape.D; ++i) put(t->view, b * shape.Sk * shape.D + i, std::nanf(""));
      }
    }
    for (const Skipped skipped : {Skipped::drop, Skipped::mean}) {
      const TilePlan plan = PlanBuilder::from_rows(g, skipped, {{0}, {}});
      const Outcome want = problem.define(plan);
      for (const Executor* e : executors_for(dtype)) {
        SCOPED_TRACE(e->name);
        expect_close(problem.run(e->name, plan), want, *e);
      }
    }
  }
}

TEST(Semantics, ResultsDoNotDependOnThreadsOrRuns) {
  const Shape shape = {.B = 1, .H = 4, .Hk = 2, .Sq = 520, .Sk = 300, .D = 40};
  const PlanGeometry g = geometry_of(shape);
  const TilePlan plan = PlanBuilder::from_rows(g, Skipped::mean, random_rows(g, 0.5, 0, 3));
  for (const DType dtype : kDtypes) {
    Problem problem(shape, dtype);
    for (const Executor* e : executors_for(dtype)) {
      set_num_threads(1);
      const Outcome want = problem.run(e->name, plan);
      for (int run = 0; run < 5; ++run) {  // ten in all
        for (const int threads : {2, 3}) {
          set_num_threads(threads);
          ASSERT_TRUE(same_bits(problem.run(e->name, plan), want)) << e->name << " threads " << threads;
        }
      }
    }
  }
  set_num_threads(0);
}

TEST(Semantics, RepeatedCallsAllocateNothing) {
  const Shape shape = {.H = 2, .Hk = 2, .Sq = 300, .Sk = 300, .D = 64};
  const PlanGeometry g = geometry_of(shape);
  const TilePlan plan = PlanBuilder::from_rows(g, Skipped::mean, random_rows(g, 0.5, 0, 3));
  for (const Executor& e : executor_records()) {
    if (e.device() != Device::cpu || !e.missing().empty()) continue;
    Problem problem(shape, e.dtypes.front());
    problem.run(e.name, plan);
    problem.ws.reset();
    const std::size_t taken = problem.ws.system_allocations();
    for (int i = 0; i < 3; ++i) problem.run(e.name, plan);
    EXPECT_EQ(problem.ws.system_allocations(), taken) << e.name;
  }
}

}  // namespace
}  // namespace winnow
