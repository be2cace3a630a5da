// The self-similarity gate against its formula in f64, and what it forces.
#include "winnow/select/cosine_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "prep/block_stats.h"
#include "select/select_testing.h"
#include "winnow/error.h"
#include "winnow/select/mean_pool.h"
#include "winnow/workspace.h"

namespace winnow {
namespace {

using testing_select::at;
using testing_select::mean_of;
using testing_select::Problem;

// The mean cosine over all pairs of tokens [first, end), shifted by `mu`.
double mean_cosine(const TensorView& x, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t end,
                   const std::vector<double>& mu) {
  const auto token = [&](std::int64_t s) {
    std::vector<double> v = mean_of(x, b, h, s, s + 1);
    for (std::size_t d = 0; d < v.size() && !mu.empty(); ++d) v[d] -= mu[d];
    return v;
  };
  double sum = 0.0;
  for (std::int64_t s = first; s < end; ++s) {
    for (std::int64_t t = first; t < end; ++t) {
      const auto u = token(s);
      const auto v = token(t);
      sum += testing_select::dot(u, v) / std::sqrt(testing_select::dot(u, u) * testing_select::dot(v, v));
    }
  }
  return sum / static_cast<double>((end - first) * (end - first));
}

// Key tiles whose tokens point the same way, but for tile `odd`, which is noise.
Problem coherent(std::int64_t odd) {
  Problem p(1, 640, 640, 1, 1, 16);
  for (Tensor* x : {&p.q, &p.k}) {
    for (std::int64_t s = 0; s < 640; ++s) {
      for (std::int64_t d = 0; d < 16 && (x == &p.q || s / 64 != odd); ++d) {
        x->as<float>()[s * 16 + d] = 0.1F * x->as<float>()[s * 16 + d] + (d == (x == &p.q ? 0 : s / 64) ? 6.0F : 0.0F);
      }
    }
  }
  return p;
}

TEST(CosineGate, SimilarityIsTheMeanCosine) {
  const Problem p(2, 130, 200, 2, 1, 20);
  const std::int64_t lengths[] = {200, 70};
  Workspace ws;
  const float* queries = self_similarity(p.q, {.tile = 64}, Smoothing::none, ws);
  const float* keys = self_similarity(p.k, {.tile = 64, .lengths = lengths}, Smoothing::mean, ws);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t g = 0; g < 3; ++g) {
      const std::int64_t end = std::min<std::int64_t>(g * 64 + 64, 130);
      for (std::int64_t h = 0; h < 2; ++h) EXPECT_NEAR(queries[(b * 2 + h) * 3 + g], mean_cosine(p.q, b, h, g * 64, end, {}), 1e-5);
    }
    const auto mu = mean_of(p.k, b, 0, 0, lengths[b]);
    for (std::int64_t g = 0; g < 4; ++g) {
      const std::int64_t end = std::min(g * 64 + 64, lengths[b]);
      EXPECT_NEAR(keys[b * 4 + g], end > g * 64 ? mean_cosine(p.k, b, 0, g * 64, end, mu) : 0.0, 1e-5) << b << " " << g;
    }
  }
}

TEST(CosineGate, WithoutGatedTilesItIsMeanPool) {
  const Problem p(2, 640, 640, 4, 2, 16);
  Workspace ws;
  SelectReport report;
  PlanSpec spec;
  spec.report = &report;
  const TilePlan gated = select(p.q, p.k, spec, CosineGate{.theta = -0.1F, .cdf = 0.6F}, ws);
  EXPECT_TRUE(gated == select(p.q, p.k, {}, MeanPool{.cdf = 0.6F}, ws));
  EXPECT_EQ(report.gated, 0);
}

TEST(CosineGate, GatedKeysAreKeptAndLeftOutOfTheSoftmax) {
  const Problem p = coherent(7);
  Workspace ws;
  SelectReport report;
  PlanSpec spec;
  spec.report = &report;
  const TilePlan plan = select(p.q, p.k, spec, CosineGate{.theta = 0.5F, .cdf = 0.5F, .neighbors = false}, ws);
  EXPECT_EQ(report.gated, 5);  // one tile of each row
  for (std::int64_t row = 0; row < 5; ++row) EXPECT_THAT(plan.tiles(Tier::refine, row), testing::ElementsAre(0, 7));  // q points at tile 0
}

TEST(CosineGate, GatedQueriesKeepEverything) {
  Problem p = coherent(-1);
  for (std::int64_t s = 128; s < 256; ++s) {
    for (std::int64_t d = 0; d < 16; ++d) p.q.as<float>()[s * 16 + d] *= s % 2 == 0 ? 1.0F : -1.0F;
  }
  Workspace ws;
  const TilePlan plan = select(p.q, p.k, {}, CosineGate{.theta = 0.5F, .cdf = 0.5F, .neighbors = false}, ws);
  for (std::int64_t row = 0; row < 5; ++row) EXPECT_EQ(plan.tiles(Tier::refine, row).size(), row == 1 ? 10U : 1U) << row;
}

// SpargeAttn#18: on diffuse data the gate keeps nearly everything; the report says so.
TEST(CosineGate, NoSpeedupOnDiffuseDataIsReported) {
  const Problem p(1, 640, 640, 2, 2, 16);
  Workspace ws;
  SelectReport report;
  PlanSpec spec;
  spec.report = &report;
  EXPECT_EQ(select(p.q, p.k, spec, CosineGate{}, ws).density(), 1.0);
  EXPECT_EQ(report.gated, report.candidates);
}

TEST(CosineGate, ZeroTokensAreGated) {  // no direction: no 0/0
  Problem p = coherent(-1);
  std::fill_n(p.k.as<float>(), p.k.numel(), 0.0F);
  Workspace ws;
  EXPECT_EQ(select(p.q, p.k, {}, CosineGate{.theta = 0.5F}, ws).density(), 1.0);
}

TEST(CosineGate, OptionsOutOfRangeAreRefused) {
  for (const CosineGate& bad : {CosineGate{.theta = 1.5F}, CosineGate{.theta = std::nanf("")}, CosineGate{.cdf = 0.0F}}) {
    EXPECT_THROW(bad.validate(), Error);
  }
}

}  // namespace
}  // namespace winnow
