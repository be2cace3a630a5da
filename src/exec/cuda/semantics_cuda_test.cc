// What attention over a plan means on a GPU: structure, the skip test, non-finite values, determinism, streams, graphs.
#include <tuple>

#include "exec/cuda/cuda_case.h"

namespace winnow {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

using GpuSemantics = GpuTest;

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}
bool same_bits(const Outcome& a, const Outcome& b) {
  return same_bits(a.out, b.out) && same_bits(a.lse, b.lse) && same_bits(a.inv_l, b.inv_l);
}

TilePlan dense(const Shape& s) { return TilePlan::dense(geometry_of(s), DenseReason::requested); }
TilePlan listed(const PlanGeometry& g, double share, std::size_t least, unsigned seed, Skipped skipped = Skipped::drop) {
  return PlanBuilder::from_rows(g, skipped, random_rows(g, share, least, seed));
}

// Small cases of every kernel, for compute-sanitizer: `--gtest_filter=*Small*`, and without *Pairs* under racecheck, which does
// not follow copies between the CTAs of a cluster.
void small_cases(const Shape& shape, DType dtype, bool only_dense) {
  Problem problem(shape, dtype);
  GpuProblem gpu(problem);
  const PlanGeometry g = geometry_of(shape);
  std::vector<TilePlan> plans;
  plans.push_back(dense(shape));
  if (!only_dense) {
    plans.push_back(listed(g, 0.6, 0, 3));
    plans.push_back(listed(g, 0.5, 0, 4, Skipped::mean));
  }
  for (const TilePlan& plan : plans) {
    const Outcome want = problem.define(plan);
    for (const Executor* e : gpu_executors()) {
      for (const float threshold : {-kInf, -1e30F}) {
        for (const bool with_inv_l : {true, false}) {
          problem.options.skip_threshold_log2 = threshold;
          EXPECT_LE(rel_l2(gpu.run(e->name, plan, with_inv_l).out, want.out), 4e-3) << e->name;
        }
      }
      problem.options.skip_threshold_log2 = -kInf;
    }
  }
}
TEST_F(GpuSemantics, Small) {
  for (const std::int64_t D : {64, 128}) {
    small_cases({.B = 2, .H = 2, .Hk = 1, .Sq = 300, .Sk = 450, .D = D}, DType::bf16, false);
    small_cases({.H = 2, .Hk = 2, .Sq = 256, .Sk = 256, .D = D}, DType::f16, false);
  }
}
TEST_F(GpuSemantics, SmallRowsThatAreDoneAgain) {
  for (const std::int64_t D : {64, 128}) {
    const Shape shape = {.H = 2, .Hk = 2, .Sq = 250, .Sk = 250, .D = D};
    Problem problem(shape, DType::bf16);
    problem.q.fill_random(1, 300.0F);
    const Outcome want = problem.define(dense(shape));
    GpuProblem gpu(problem);
    for (const Executor* e : gpu_executors()) EXPECT_LE(rel_l2(gpu.run(e->name, dense(shape), false).out, want.out), 3e-2) << e->name;
  }
}
TEST_F(GpuSemantics, SmallInPairs) {
  for (const std::int64_t D : {64, 128}) small_cases({.H = 270, .Hk = 2, .Sq = 130, .Sk = 250, .D = D}, DType::bf16, true);
}

// V is the one-hot of the key block: the output is the softmax mass of each block.
TEST_F(GpuSemantics, OneHotValuesGiveTheMassOfEveryBlock) {
  for (const std::int64_t D : {64, 128}) {
    const Shape shape = {.Sq = 300, .Sk = 1088, .D = D};
    Problem problem(shape, DType::bf16);
    std::int64_t i = 0;
    problem.v.each([&](std::int64_t at) {
      put(problem.v.view, at, i / shape.D / 64 == i % shape.D ? 1.0F : 0.0F);
      ++i;
    });
    const auto rows = random_rows(geometry_of(shape), 0.5, 1, 3);
    const TilePlan plan = PlanBuilder::from_rows(geometry_of(shape), Skipped::drop, rows);
    GpuProblem gpu(problem);
    for (const Executor* e : gpu_executors()) {
      const Outcome got = gpu.run(e->name, plan);
      for (std::int64_t q = 0; q < shape.Sq; ++q) {
        const auto& tiles = rows[static_cast<std::size_t>(q / 128)];
        for (std::int32_t tile = 0; tile < 17; ++tile) {
          const float mass = got.out[static_cast<std::size_t>(q * D + tile)];
          ASSERT_EQ(mass > 0.0F, std::ranges::find(tiles, tile) != tiles.end()) << e->name << " query " << q << " tile " << tile;
        }
      }
      EXPECT_LE(largest_difference(got.out, problem.define(plan).out), 5e-3) << e->name;
    }
  }
}

TEST_F(GpuSemantics, ConstantValuesComeBack) {
  const Shape shape = {.H = 2, .Hk = 1, .Sq = 140, .Sk = 700, .D = 128};
  Problem problem(shape, DType::bf16);
  problem.v.each([&](std::int64_t at) { put(problem.v.view, at, 1.5F); });
  GpuProblem gpu(problem);
  for (const Skipped skipped : {Skipped::drop, Skipped::mean}) {
    for (const Executor* e : gpu_executors()) {
      for (const float x : gpu.run(e->name, listed(geometry_of(shape), 0.5, 1, 3, skipped)).out) ASSERT_NEAR(x, 1.5F, 8e-3) << e->name;
    }
  }
}

// With equal keys and values inside every block, means lose nothing.
TEST_F(GpuSemantics, MeansOfEqualKeysAreExact) {
  const Shape shape = {.Sq = 140, .Sk = 420, .D = 64};
  Problem problem(shape, DType::bf16);
  for (Buffer* t : {&problem.k, &problem.v}) {
    for (std::int64_t key = 0; key < shape.Sk; ++key) {
      for (std::int64_t d = 0; d < shape.D; ++d) put(t->view, key * shape.D + d, get(t->view, key / 64 * 64 * shape.D + d));
    }
  }
  GpuProblem gpu(problem);
  const Outcome want = problem.define(dense(shape));
  for (const Executor* e : gpu_executors()) {
    const Outcome got = gpu.run(e->name, listed(geometry_of(shape), 0.4, 0, 3, Skipped::mean));
    EXPECT_LE(rel_l2(got.out, want.out), 4e-3) << e->name;
    for (std::size_t i = 0; i < want.lse.size(); ++i) ASSERT_NEAR(got.lse[i], want.lse[i], 1e-3) << e->name;
  }
}

TEST_F(GpuSemantics, FullListsAreBitwiseDense) {
  for (const std::int64_t D : {64, 128}) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      for (const std::int64_t H : {3, 135}) {  // 135: the dense plan runs in pairs of CTAs
        const Shape shape = {.B = 2, .H = H, .Hk = 3, .Sq = 150, .Sk = 1000, .D = D};
        Problem problem(shape, dtype);
        GpuProblem gpu(problem);
        PlanGeometry g = geometry_of(shape);
        for (const bool ragged : {false, true}) {
          if (ragged) g.key_lengths = {1000, 300};
          const TilePlan identity = TilePlan::dense(g, DenseReason::requested);
          for (const Executor* e : gpu_executors()) {
            const Outcome want = gpu.run(e->name, identity);
            EXPECT_TRUE(same_bits(gpu.run(e->name, listed(g, 1.0, 1, 3)), want)) << e->name;
            EXPECT_TRUE(same_bits(gpu.run(e->name, listed(g, 1.0, 1, 3, Skipped::mean)), want)) << e->name;
          }
        }
      }
    }
  }
}

TEST_F(GpuSemantics, SkippingNothingIsBitwiseNoTest) {
  for (const std::int64_t D : {64, 128}) {
    for (const std::int64_t H : {2, 270}) {
      const Shape shape = {.H = H, .Hk = 2, .Sq = 150, .Sk = 1300, .D = D};
      Problem problem(shape, DType::bf16);
      GpuProblem gpu(problem);
      for (const Executor* e : gpu_executors()) {
        for (const TilePlan& plan : {dense(shape), listed(geometry_of(shape), 0.5, 1, 3)}) {
          const Outcome off = gpu.run(e->name, plan);
          EXPECT_EQ(off.counts.tested, 0);
          problem.options.skip_threshold_log2 = -1e30F;
          const Outcome on = gpu.run(e->name, plan);
          problem.options.skip_threshold_log2 = -kInf;
          EXPECT_GT(on.counts.tested, 0) << e->name;
          EXPECT_EQ(on.counts.skipped, 0) << e->name;
          EXPECT_TRUE(same_bits(off, on)) << e->name;
        }
      }
    }
  }
}

// The same tiles are dropped as by the definition with the executor's granule.
TEST_F(GpuSemantics, SkipsWhatTheDefinitionSkips) {
  for (const std::int64_t D : {64, 128}) {
    // `level`: moves all scores, so that the limits of all rows are negative, or positive.
    for (const auto& [gain, threshold, level] :
         {std::tuple{4.0F, -6.0F, 0.0F}, {6.0F, -2.0F, 0.0F}, {3.0F, -0.5F, 0.0F}, {4.0F, -6.0F, -20.0F}, {4.0F, -6.0F, 20.0F}}) {
      const Shape shape = {.H = 2, .Hk = 2, .Sq = 1000, .Sk = 1000, .D = D};
      Problem problem(shape, DType::bf16);
      problem.q.fill_random(1, gain);
      // Blocks of different size, so that whole tiles fall below others.
      problem.k.each([&](std::int64_t at) {
        const std::int64_t block = at / (shape.H * D) / 128;
        put(problem.k.view, at, get(problem.k.view, at) * static_cast<float>((block * 5 % 8 + 1) * (block * 5 % 8 + 1)) / 64.0F);
      });
      if (level != 0.0F) {
        problem.q.each([&](std::int64_t at) { put(problem.q.view, at, at % D == 0 ? std::abs(level) : get(problem.q.view, at)); });
        problem.k.each([&](std::int64_t at) { put(problem.k.view, at, at % D == 0 ? level : get(problem.k.view, at)); });
      }
      problem.options.skip_threshold_log2 = threshold;
      GpuProblem gpu(problem);
      const PlanGeometry g = geometry_of(shape);
      std::vector<std::vector<std::int32_t>> even(static_cast<std::size_t>(g.rows())), odd = even;
      for (auto& row : even) row = {0, 2, 4, 6, 8, 10, 12, 14};
      for (auto& row : odd) row = {1, 3, 5, 9, 15};
      std::vector<TilePlan> plans;
      plans.push_back(dense(shape));
      plans.push_back(listed(g, 0.5, 0, 3));
      plans.push_back(listed(g, 0.6, 1, 4, Skipped::mean));
      plans.push_back(PlanBuilder::from_rows(g, Skipped::drop, even, odd));
      for (const Executor* e : gpu_executors()) {
        std::int64_t skipped = 0;
        for (const TilePlan& plan : plans) {
          SCOPED_TRACE(std::string(e->name) + " D" + std::to_string(D) + " gain " + std::to_string(gain) + " level " +
                       std::to_string(level) + " " + plan.describe());
          const Outcome want = problem.define(plan, e->granule);
          for (const bool with_inv_l : {true, false}) {
            const Outcome got = gpu.run(e->name, plan, with_inv_l);
            EXPECT_EQ(got.counts.tested, want.counts.tested);
            skipped += got.counts.skipped;
            EXPECT_NEAR(static_cast<double>(got.counts.skipped), static_cast<double>(want.counts.skipped),
                        1.0 + 0.01 * static_cast<double>(want.counts.skipped));  // f32 logits at the threshold
            EXPECT_LE(rel_l2(got.out, want.out), 1e-2);
          }
        }
        EXPECT_GT(skipped, 0) << e->name;
      }
    }
  }
}

// A threshold of 1 (0 in log2) still computes the first tiles, and drops everything below them.
TEST_F(GpuSemantics, TheFirstTileIsNeverSkipped) {
  const Shape shape = {.Sq = 128, .Sk = 640, .D = 64};
  Problem problem(shape, DType::bf16);
  problem.q.each([&](std::int64_t at) { put(problem.q.view, at, 1.0F); });
  GpuProblem probe(problem);
  problem.options.skip_threshold_log2 = 0.0F;
  for (const Executor* e : gpu_executors()) {
    const bool last_first = e->granule.order == SkipGranule::Order::last_first;
    const std::int64_t first = last_first ? shape.Sk - e->granule.keys : 0;  // of the unit that comes first
    problem.k.each([&](std::int64_t at) {
      const std::int64_t key = at / shape.D;
      put(problem.k.view, at, key >= first && key < first + e->granule.keys ? 1.0F : 0.5F);
    });
    GpuProblem gpu(problem);
    const Outcome got = gpu.run(e->name, dense(shape));
    EXPECT_EQ(got.counts.skipped, got.counts.tested - 128 / e->granule.rows) << e->name;
    std::vector<std::int32_t> only;
    for (std::int64_t key = first; key < first + e->granule.keys; key += 64) only.push_back(static_cast<std::int32_t>(key / 64));
    problem.options.skip_threshold_log2 = -kInf;
    EXPECT_TRUE(same_bits(got.out, gpu.run(e->name, PlanBuilder::from_rows(geometry_of(shape), Skipped::drop, {only})).out)) << e->name;
    problem.options.skip_threshold_log2 = 0.0F;
  }
}

TEST_F(GpuSemantics, NonFiniteInputsReachExactlyTheRowsThatUseThem) {
  const Shape shape = {.Sq = 300, .Sk = 400, .D = 64};
  const PlanGeometry g = geometry_of(shape);
  const TilePlan plan = PlanBuilder::from_rows(g, Skipped::drop, {{0, 1, 2, 3, 4, 5, 6}, {0, 1, 5}, {2, 4, 6}});
  const std::int64_t D = shape.D;
  for (const float bad : {std::nanf(""), kInf, -kInf}) {
    for (const Executor* e : gpu_executors()) {
      SCOPED_TRACE(std::string(e->name) + " " + std::to_string(bad));
      const auto rows_with = [&](auto poison, bool of_nan, float threshold = -kInf) {
        Problem problem(shape, DType::bf16);
        problem.options.skip_threshold_log2 = threshold;
        poison(problem);
        const Outcome got = GpuProblem(problem).run(e->name, plan, false);
        std::vector<std::int64_t> rows;
        for (std::int64_t q = 0; q < shape.Sq; ++q) {
          const auto begin = got.out.begin() + q * D;
          if (std::any_of(begin, begin + D, [&](float x) { return of_nan ? std::isnan(x) : !std::isfinite(x); })) rows.push_back(q);
        }
        return rows;
      };
      EXPECT_EQ(rows_with([&](Problem& p) { put(p.q.view, 130 * D + 5, bad); }, false), std::vector<std::int64_t>{130});
      // Key 140 lies in tile 2: query tiles 0 and 2 compute it, 128 + 44 rows.
      EXPECT_EQ(rows_with([&](Problem& p) { put(p.v.view, 140 * D + 5, bad); }, false).size(), 172U);
      for (const std::int64_t q : rows_with([&](Problem& p) { put(p.k.view, 140 * D + 5, bad); }, false)) ASSERT_NE(q / 128, 1) << q;
      if (!std::isnan(bad)) continue;
      for (const float threshold : {-kInf, -3.0F}) {  // no skip test drops a NaN
        EXPECT_EQ(rows_with([&](Problem& p) { put(p.k.view, 140 * D + 5, bad); }, true, threshold).size(), 172U) << threshold;
      }
    }
  }
}

// Tiles far below the maximum are dropped, but not the one that holds a NaN.
TEST_F(GpuSemantics, ATileWithANaNIsNeverSkipped) {
  const Shape shape = {.Sq = 128, .Sk = 640, .D = 64};
  Problem problem(shape, DType::bf16);
  problem.options.skip_threshold_log2 = -3.0F;
  problem.q.each([&](std::int64_t at) { put(problem.q.view, at, 1.0F); });
  problem.k.each([&](std::int64_t at) {
    const std::int64_t tile = at / shape.D / 64;
    put(problem.k.view, at, tile == 0 || tile >= 8 ? 1.0F : 0.0F);  // what either order of visits begins with is large
  });
  put(problem.k.view, (4 * 64 + 50) * shape.D, std::nanf(""));
  GpuProblem gpu(problem);
  for (const Executor* e : gpu_executors()) {
    const Outcome got = gpu.run(e->name, dense(shape));
    EXPECT_GT(got.counts.skipped, 0) << e->name;
    EXPECT_TRUE(std::ranges::all_of(got.out, [](float x) { return std::isnan(x); })) << e->name;
  }
}

TEST_F(GpuSemantics, MinusInfinityLogitsHaveNoWeight) {
  const Shape shape = {.Sq = 40, .Sk = 400, .D = 64};
  Problem problem(shape, DType::bf16);
  problem.q.each([&](std::int64_t at) { put(problem.q.view, at, 1.0F); });
  for (std::int64_t key = 0; key < 140; ++key) put(problem.k.view, key * shape.D, -kInf);    // whole first tiles, and more
  for (std::int64_t key = 300; key < 400; ++key) put(problem.k.view, key * shape.D, -kInf);  // and the last ones
  const Outcome want = problem.define(dense(shape));
  GpuProblem gpu(problem);
  for (const Executor* e : gpu_executors()) {
    for (const bool with_inv_l : {true, false}) {
      const Outcome got = gpu.run(e->name, dense(shape), with_inv_l);
      EXPECT_LE(rel_l2(got.out, want.out), 4e-3) << e->name;
      for (std::size_t i = 0; i < want.lse.size(); ++i) ASSERT_NEAR(got.lse[i], want.lse[i], 1e-3) << e->name;
    }
  }
}

TEST_F(GpuSemantics, TenRunsAreBitwiseEqual) {
  for (const std::int64_t D : {64, 128}) {
    const Shape shape = {.B = 2, .H = 90, .Hk = 9, .Sq = 300, .Sk = 1100, .D = D};  // several rows for every CTA
    Problem problem(shape, DType::bf16);
    GpuProblem gpu(problem);
    const PlanGeometry g = geometry_of(shape);
    for (const TilePlan& plan : {dense(shape), listed(g, 0.4, 0, 3), listed(g, 0.4, 0, 4, Skipped::mean)}) {
      for (const Executor* e : gpu_executors()) {
        const Outcome first = gpu.run(e->name, plan, false);
        for (int run = 1; run < 10; ++run) ASSERT_TRUE(same_bits(gpu.run(e->name, plan, false), first)) << e->name;
      }
    }
  }
}

}  // namespace
}  // namespace winnow
