// Mean-pool and oracle selection against plain f64 definitions, and the inputs they have to cope with.
#include "winnow/select/mean_pool.h"
#include "winnow/select/oracle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>
#include <numeric>
#include <vector>

#include "core/numeric.h"
#include "core/random.h"
#include "select/select_testing.h"
#include "select/spec.h"
#include "select/tile_mass.h"
#include "winnow/error.h"
#include "winnow/threads.h"
#include "winnow/workspace.h"

namespace winnow {
namespace {

using testing_select::at;
using testing_select::heads_first;
using testing_select::Problem;
using testing_select::tokens_first;

// Mean-pool masses of one row, in f64.
std::vector<double> pooled_mass(const TensorView& q, const TensorView& k, const PlanGeometry& g, std::int64_t b, std::int64_t h,
                                std::int64_t i) {
  const std::int64_t D = q.size(3);
  const auto mean = [&](const TensorView& x, std::int64_t head, std::int64_t first, std::int64_t end) {
    std::vector<double> m(static_cast<std::size_t>(D), 0.0);
    for (std::int64_t s = first; s < end; ++s)
      for (std::int64_t d = 0; d < D; ++d) m[static_cast<std::size_t>(d)] += at(x, b, s, head, d) / static_cast<double>(end - first);
    return m;
  };
  const std::int64_t first = std::clamp<std::int64_t>(g.Sq - g.tile_q, 0, i * g.tile_q);  // a short last tile: the last tile_q queries
  const auto qm = mean(q, h, first, std::min(g.Sq, first + g.tile_q));
  std::vector<double> p;
  for (std::int64_t j = 0; j < g.key_tiles(b); ++j) {
    const std::int64_t end = std::min(g.keys(b), (j + 1) * g.tile_k);
    const auto km = mean(k, h / (q.size(2) / k.size(2)), j * g.tile_k, end);
    const double dot = std::inner_product(qm.begin(), qm.end(), km.begin(), 0.0);
    p.push_back(dot / std::sqrt(static_cast<double>(D)) + std::log(static_cast<double>(end - j * g.tile_k)));
  }
  const double largest = *std::ranges::max_element(p);
  for (double& x : p) x = std::exp(x - largest);
  return p;
}

void expect_matches_definition(const Problem& problem, const PlanSpec& spec, float cdf) {
  Workspace ws;
  const TilePlan plan = select(problem.q, problem.k, spec, MeanPool{.cdf = cdf, .neighbors = false}, ws);
  const PlanGeometry& g = plan.geometry();
  for (std::int64_t b = 0; b < g.B; ++b) {
    for (std::int64_t h = 0; h < g.H; ++h) {
      for (std::int64_t i = 0; i < g.Gq(); ++i) {
        const auto p = pooled_mass(problem.q, problem.k, g, b, h, i);
        std::vector<std::int32_t> order(p.size());
        std::iota(order.begin(), order.end(), 0);
        std::ranges::sort(order,
                          [&](std::int32_t x, std::int32_t y) { return p[static_cast<std::size_t>(x)] > p[static_cast<std::size_t>(y)]; });
        const double total = std::accumulate(p.begin(), p.end(), 0.0);
        std::size_t count = 0;
        for (double sum = 0.0; sum < static_cast<double>(cdf) * total;) sum += p[static_cast<std::size_t>(order[count++])];
        order.resize(count);
        std::ranges::sort(order);
        EXPECT_THAT(plan.tiles(Tier::refine, g.row(b, h, i)), testing::ElementsAreArray(order)) << b << " " << h << " " << i;
      }
    }
  }
}

TEST(MeanPool, MatchesTheDefinition) { expect_matches_definition(Problem(2, 300, 300, 2, 2, 32), {}, 0.7F); }
TEST(MeanPool, GroupedHeadsAndRaggedKeys) { expect_matches_definition(Problem(1, 129, 1063, 28, 4, 16), {}, 0.5F); }
TEST(MeanPool, KeyLengths) {
  PlanSpec spec;
  spec.key_lengths = {300, 65};
  expect_matches_definition(Problem(2, 300, 300, 2, 1, 24), spec, 0.6F);
}
TEST(MeanPool, OtherTileSizes) {
  PlanSpec spec;
  spec.tile_q = 32;
  spec.tile_k = 16;
  spec.mean_group = 8;
  expect_matches_definition(Problem(1, 201, 201, 1, 1, 8), spec, 0.8F);
}

TEST(MeanPool, CdfOneKeepsEverything) {
  for (const std::int64_t S : {1, 63, 129, 4033, 4752}) {
    const Problem problem(1, S, S, 1, 1, 16);
    Workspace ws;
    const TilePlan plan = select(problem.q, problem.k, {}, MeanPool{.cdf = 1.0F}, ws);
    EXPECT_EQ(plan.density(), 1.0) << S;
  }
}

TEST(MeanPool, NeighborsAreKeptAndLowerTheRest) {
  const Problem problem(1, 1000, 1000, 1, 1, 16);
  Workspace ws;
  const TilePlan with = select(problem.q, problem.k, {}, MeanPool{.cdf = 0.3F}, ws);
  const TilePlan without = select(problem.q, problem.k, {}, MeanPool{.cdf = 0.3F, .neighbors = false}, ws);
  EXPECT_THAT(with.tiles(Tier::refine, 3), testing::IsSupersetOf({5, 6, 7, 8}));
  EXPECT_FALSE(with == without);
  const Problem cross(1, 1000, 999, 1, 1, 16);  // positions of queries and keys are unrelated
  const TilePlan a = select(cross.q, cross.k, {}, MeanPool{.cdf = 0.3F}, ws);
  EXPECT_TRUE(a == select(cross.q, cross.k, {}, MeanPool{.cdf = 0.3F, .neighbors = false}, ws));
}

TEST(MeanPool, MeansAreThePolicy) {
  const Problem problem(1, 300, 300, 1, 1, 16);
  Workspace ws;
  EXPECT_EQ(select(problem.q, problem.k, {}, MeanPool{}, ws).skipped(), Skipped::mean);
  EXPECT_EQ(select(problem.q, problem.k, {}, MeanPool{.means = false}, ws).skipped(), Skipped::drop);
}

TEST(MeanPool, EqualScoresAreSpreadOverTheSequence) {
  Problem problem(1, 128, 4096, 1, 1, 16);
  std::fill_n(problem.k.as<float>(), problem.k.numel(), 0.5F);
  Workspace ws;
  const TilePlan plan = select(problem.q, problem.k, {}, MeanPool{.cdf = 0.25F}, ws);
  const auto tiles = plan.tiles(Tier::refine, 0);
  ASSERT_EQ(tiles.size(), 16U);
  for (std::size_t i = 0; i < tiles.size(); ++i) EXPECT_EQ(tiles[i], static_cast<std::int32_t>(4 * i));
}

TEST(MeanPool, NonFiniteInputsKeepTheirTiles) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Problem problem(1, 640, 640, 1, 1, 16);
    problem.k.as<float>()[450 * 16 + 3] = bad;
    problem.q.as<float>()[200 * 16 + 3] = bad;
    Workspace ws;
    const TilePlan plan = select(problem.q, problem.k, {}, MeanPool{.cdf = 0.1F, .neighbors = false}, ws);
    for (std::int64_t row = 0; row < 5; ++row) {
      EXPECT_THAT(plan.tiles(Tier::refine, row), testing::Contains(450 / 64)) << row;
    }
    EXPECT_EQ(plan.tiles(Tier::refine, 1).size(), 10U);  // nothing is known about a row whose queries are not finite
    EXPECT_LT(plan.tiles(Tier::refine, 0).size(), 10U);
  }
}

TEST(MeanPool, GranularityRoundsRowsUp) {
  const Problem problem(1, 640, 700, 2, 2, 16);  // 11 key tiles
  Workspace ws;
  PlanSpec spec;
  spec.granularity = 4;
  const TilePlan snapped = select(problem.q, problem.k, spec, MeanPool{.cdf = 0.6F}, ws);
  const TilePlan plain = select(problem.q, problem.k, {}, MeanPool{.cdf = 0.6F}, ws);
  for (std::int64_t row = 0; row < snapped.geometry().rows(); ++row) {
    const auto kept = snapped.tiles(Tier::refine, row);
    EXPECT_TRUE(kept.size() == 4 || kept.size() == 8 || kept.size() == 11);
    EXPECT_TRUE(std::ranges::includes(kept, plain.tiles(Tier::refine, row)));
  }
}

TEST(MeanPool, StridesAndDtypesDoNotChangeTheChoice) {
  const Problem problem(2, 200, 200, 2, 2, 32);
  const Tensor qt = heads_first(problem.q);
  const Tensor kt = heads_first(problem.k);
  Workspace ws;
  const TilePlan plan = select(problem.q, problem.k, {}, MeanPool{.cdf = 0.5F}, ws);
  EXPECT_TRUE(plan == select(tokens_first(qt), tokens_first(kt), {}, MeanPool{.cdf = 0.5F}, ws));

  for (const DType dtype : {DType::bf16, DType::f16}) {
    Tensor q(dtype, {2, 200, 2, 32});
    Tensor k(dtype, {2, 200, 2, 32});
    Tensor qf(DType::f32, {2, 200, 2, 32});
    Tensor kf(DType::f32, {2, 200, 2, 32});
    const auto narrow = [&](const Tensor& from, const Tensor& to, const Tensor& widened) {
      for (std::int64_t i = 0; i < from.numel(); ++i) {
        const float x = from.as<float>()[i];
        to.as<std::uint16_t>()[i] = dtype == DType::bf16 ? to_bf16(x).bits : to_f16(x).bits;
        widened.as<float>()[i] = dtype == DType::bf16 ? to_f32(to_bf16(x)) : to_f32(to_f16(x));
      }
    };
    narrow(problem.q, q, qf);
    narrow(problem.k, k, kf);
    EXPECT_TRUE(select(q, k, {}, MeanPool{.cdf = 0.5F}, ws) == select(qf, kf, {}, MeanPool{.cdf = 0.5F}, ws));
  }
}

TEST(MeanPool, EmptyProblems) {
  Workspace ws;
  for (const auto& [B, Sq, Sk] : {std::tuple{0, 5, 5}, {1, 0, 5}, {1, 5, 0}, {1, 0, 0}}) {
    const Problem problem(B, Sq, Sk, 1, 1, 8);
    EXPECT_NO_THROW(select(problem.q, problem.k, {}, MeanPool{}, ws));
    EXPECT_NO_THROW(select(problem.q, problem.k, {}, Oracle{.cdf = 0.5F}, ws));
  }
  PlanSpec spec;
  spec.key_lengths = {0};
  const Problem problem(1, 100, 100, 1, 1, 8);
  EXPECT_TRUE(select(problem.q, problem.k, spec, MeanPool{}, ws).tiles(Tier::refine, 0).empty());
  EXPECT_TRUE(select(problem.q, problem.k, spec, Oracle{.cdf = 0.5F}, ws).tiles(Tier::refine, 0).empty());
}

TEST(Selectors, SameBitsForAnyNumberOfThreads) {
  const Problem problem(1, 1500, 1500, 4, 2, 32);
  Workspace ws;
  set_num_threads(1);
  const TilePlan pooled = select(problem.q, problem.k, {}, MeanPool{.cdf = 0.6F}, ws);
  const TilePlan oracle = select(problem.q, problem.k, {}, Oracle{.cdf = 0.6F}, ws);
  for (const int threads : {2, 3, 8}) {
    set_num_threads(threads);
    EXPECT_TRUE(pooled == select(problem.q, problem.k, {}, MeanPool{.cdf = 0.6F}, ws));
    EXPECT_TRUE(oracle == select(problem.q, problem.k, {}, Oracle{.cdf = 0.6F}, ws));
  }
  set_num_threads(0);
}

TEST(Selectors, WrongInputsAreRefused) {
  Workspace ws;
  const Problem p(1, 64, 64, 4, 4, 8);
  const auto refuses = [&](const TensorView& q, const TensorView& k, const PlanSpec& spec = {}) {
    EXPECT_THROW(select(q, k, spec, MeanPool{}, ws), Error);
    EXPECT_THROW(select(q, k, spec, Oracle{.density = 0.5F}, ws), Error);
  };
  refuses(p.q, Problem(1, 64, 64, 3, 3, 8).k);
  refuses(p.q, Problem(2, 64, 64, 4, 4, 8).k);
  refuses(p.q, Problem(1, 64, 64, 4, 4, 16).k);
  refuses(p.q, Tensor(DType::i32, {1, 64, 4, 8}));
  refuses(Tensor(DType::f32, {1, 64, 4, 0}), Tensor(DType::f32, {1, 64, 4, 0}));
  refuses(p.q, Tensor(DType::f32, {64, 4, 8}));
  const std::int64_t shape[] = {1, 64, 4, 8};
  const std::int64_t strides[] = {64 * 32, 32, 1, 4};
  refuses(TensorView::strided(p.q.view().data, DType::f32, shape, strides, 4), p.k);
  PlanSpec spec;
  spec.granularity = 0;
  refuses(p.q, p.k, spec);
  spec = {};
  spec.scale = std::numeric_limits<float>::infinity();
  refuses(p.q, p.k, spec);
  spec = {};
  spec.key_lengths = {65};
  refuses(p.q, p.k, spec);
}

TEST(Selectors, OptionsOutOfRangeAreRefused) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float cdf : {0.0F, -0.1F, 1.1F, nan}) EXPECT_THROW(MeanPool{.cdf = cdf}.validate(), Error);
  EXPECT_NO_THROW(MeanPool{}.validate());
  EXPECT_THROW(Oracle{}.validate(), Error);
  EXPECT_THROW((Oracle{.cdf = 0.5F, .density = 0.5F}).validate(), Error);
  EXPECT_THROW(Oracle{.cdf = nan}.validate(), Error);
  EXPECT_THROW((Oracle{.cdf = 0.5F, .density = nan}).validate(), Error);
  EXPECT_THROW(Oracle{.density = 1.5F}.validate(), Error);
  EXPECT_NO_THROW(Oracle{.density = 1.0F}.validate());
}

TEST(Oracle, MassMatchesADenseSoftmaxInF64) {
  const Problem p(1, 150, 200, 2, 1, 16);
  PlanGeometry g = plan_geometry(p.q, p.k, {});
  g.key_lengths = {190};
  Workspace ws;
  TileMass masses(p.q, p.k, g, 0.25F, ws);
  for (std::int64_t h = 0; h < 2; ++h) {
    const float* mass = masses.head(0, h);
    for (std::int64_t i = 0; i < g.Gq(); ++i) {
      std::vector<double> expected(4, 0.0);
      const std::int64_t rows = std::min<std::int64_t>(128, 150 - i * 128);
      for (std::int64_t s = i * 128; s < i * 128 + rows; ++s) {
        std::vector<double> e(190);
        for (std::int64_t t = 0; t < 190; ++t) {
          double dot = 0.0;
          for (std::int64_t d = 0; d < 16; ++d) dot += static_cast<double>(at(p.q, 0, s, h, d)) * at(p.k, 0, t, 0, d);
          e[static_cast<std::size_t>(t)] = std::exp(0.25 * dot);
        }
        const double total = std::accumulate(e.begin(), e.end(), 0.0);
        for (std::size_t t = 0; t < 190; ++t) expected[t / 64] += e[t] / total / static_cast<double>(rows);
      }
      double sum = 0.0;
      for (std::size_t j = 0; j < 4; ++j) {
        const auto m = static_cast<double>(mass[static_cast<std::size_t>(i * g.Gk()) + j]);
        if (j < 3) {
          EXPECT_NEAR(m, expected[j], 1e-5);
        }
        sum += m;
      }
      EXPECT_NEAR(sum, 1.0, 1e-5);
    }
  }
}

TEST(Oracle, BudgetsByMassAndByDensity) {
  const Problem p(1, 640, 640, 2, 2, 16);
  Workspace ws;
  const TilePlan quarter = select(p.q, p.k, {}, Oracle{.density = 0.25F}, ws);
  for (std::int64_t row = 0; row < quarter.geometry().rows(); ++row) EXPECT_EQ(quarter.tiles(Tier::refine, row).size(), 3U);  // ceil(2.5)
  const TilePlan most = select(p.q, p.k, {}, Oracle{.cdf = 0.9F}, ws);
  EXPECT_GE(plan_recall(most, p.q, p.k, std::nanf(""), ws).mass, 0.9);
  EXPECT_EQ(select(p.q, p.k, {}, Oracle{.cdf = 1.0F}, ws).density(), 1.0);
  EXPECT_EQ(most.skipped(), Skipped::drop);
}

TEST(Oracle, NonFiniteLogitsKeepEverythingTheyTouch) {
  Problem p(1, 256, 256, 1, 1, 16);
  p.q.as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  Workspace ws;
  const TilePlan plan = select(p.q, p.k, {}, Oracle{.density = 0.25F}, ws);
  EXPECT_EQ(plan.tiles(Tier::refine, 0).size(), 4U);
  EXPECT_EQ(plan.tiles(Tier::refine, 1).size(), 1U);
}

TEST(Recall, OfTheOracleIsOneAndNothingBeatsIt) {
  const Problem p(1, 700, 900, 4, 2, 16);
  Workspace ws;
  const TilePlan oracle = select(p.q, p.k, {}, Oracle{.density = 0.3F}, ws);
  const Recall best = plan_recall(oracle, p.q, p.k, std::nanf(""), ws);
  EXPECT_EQ(best.set, 1.0);
  PlanSpec spec;
  spec.granularity = 5;  // ceil(0.3 * 15) tiles, as the oracle
  const Recall pooled = plan_recall(select(p.q, p.k, spec, MeanPool{.cdf = 1e-6F}, ws), p.q, p.k, std::nanf(""), ws);
  EXPECT_LE(pooled.mass, best.mass);
  EXPECT_LT(pooled.set, 1.0);
  EXPECT_GT(pooled.set, 0.3);
  const Recall all = plan_recall(TilePlan::dense(oracle.geometry(), DenseReason::none), p.q, p.k, std::nanf(""), ws);
  EXPECT_NEAR(all.mass, 1.0, 1e-5);
  EXPECT_EQ(all.set, 1.0);
  EXPECT_THROW(plan_recall(oracle, p.q, p.q, std::nanf(""), ws), Error);
}

}  // namespace
}  // namespace winnow
