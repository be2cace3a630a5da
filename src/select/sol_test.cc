// Sol's rule against its formula in f64.
#include "winnow/select/sol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "select/select_testing.h"
#include "winnow/error.h"
#include "winnow/workspace.h"

namespace winnow {
namespace {

using testing_select::dot;
using testing_select::mean_of;
using testing_select::Problem;

// What one query tile keeps: the union over its blocks of 64 queries.
std::set<std::int32_t> kept_by_formula(const Problem& p, const PlanGeometry& g, const Sol& options, std::int64_t b, std::int64_t h,
                                       std::int64_t i) {
  const std::int64_t key_head = h / (p.q.view().size(2) / p.k.view().size(2));
  const double scale = 1.0 / std::sqrt(static_cast<double>(p.q.view().size(3)));
  std::vector<std::vector<double>> keys;
  for (std::int64_t j = 0; j < g.key_tiles(b); ++j) keys.push_back(mean_of(p.k, b, key_head, j * 64, std::min(g.keys(b), j * 64 + 64)));
  const auto n = static_cast<double>(keys.size());
  std::set<std::int32_t> kept;
  double best = -1e300;
  std::int32_t best_tile = 0;
  for (std::int64_t s = i * 128; s < std::min(g.Sq, i * 128 + 128); s += 64) {
    const auto q = mean_of(p.q, b, h, s, std::min(s + 64, g.Sq));
    std::vector<double> center(q.size(), 0.0);
    for (const auto& key : keys) {
      for (std::size_t d = 0; d < q.size(); ++d) center[d] += key[d] / n;
    }
    double square = 0.0;  // q' Cov q, or with the diagonal of Cov alone
    for (const auto& key : keys) {
      double product = 0.0;
      for (std::size_t d = 0; d < q.size(); ++d) {
        const double part = q[d] * (key[d] - center[d]);
        product += options.exact_spread ? part : 0.0;
        square += options.exact_spread ? 0.0 : part * part / n;
      }
      square += product * product / n;
    }
    const double spread = scale * std::sqrt(square);
    double mean = 0.0;
    for (const auto& key : keys) mean += scale * dot(q, key) / n;
    for (std::size_t j = 0; j < keys.size(); ++j) {
      const double z = (scale * dot(q, keys[j]) - mean) / spread;
      if (z >= static_cast<double>(options.tau)) kept.insert(static_cast<std::int32_t>(j));
      if (z > best) {
        best = z;
        best_tile = static_cast<std::int32_t>(j);
      }
    }
  }
  kept.insert(best_tile);
  return kept;
}

void expect_matches_formula(const Problem& p, const PlanSpec& spec, float tau) {
  for (const bool exact_spread : {true, false}) {
    Workspace ws;
    const Sol options = {.tau = tau, .exact_spread = exact_spread, .neighbors = false};
    const TilePlan plan = select(p.q, p.k, spec, options, ws);
    const PlanGeometry& g = plan.geometry();
    for (std::int64_t row = 0; row < g.rows(); ++row) {
      const auto kept = kept_by_formula(p, g, options, row / (g.H * g.Gq()), row / g.Gq() % g.H, row % g.Gq());
      EXPECT_THAT(plan.tiles(Tier::refine, row), testing::ElementsAreArray(kept)) << "exact " << exact_spread << " row " << row;
    }
  }
}

TEST(Sol, MatchesTheRule) {
  for (const float tau : {0.0F, 1.0F, 1.5F, 9.0F}) expect_matches_formula(Problem(2, 640, 640, 2, 2, 32), {}, tau);
}
TEST(Sol, GroupedHeadsAndRaggedLengths) { expect_matches_formula(Problem(1, 129, 1063, 28, 4, 16), {}, 1.0F); }
TEST(Sol, KeyLengths) {
  PlanSpec spec;
  spec.key_lengths = {300, 69};
  expect_matches_formula(Problem(2, 300, 300, 2, 1, 24), spec, 0.5F);
}

TEST(Sol, TauOneKeepsAboutASixthOfRandomBlocks) {
  const Problem p(1, 4096, 4096, 4, 4, 64);
  Workspace ws;
  const double density = select(p.q, p.k, {}, Sol{.neighbors = false}, ws).density();
  EXPECT_GT(density, 0.16);  // of one block of queries; a tile is the union of two
  EXPECT_LT(density, 0.32);
}

TEST(Sol, EqualScoresAreNoOutliers) {
  Problem p(1, 128, 4096, 1, 1, 16);
  std::fill_n(p.k.as<float>(), p.k.numel(), 0.5F);
  Workspace ws;
  for (const bool exact : {true, false}) EXPECT_EQ(select(p.q, p.k, {}, Sol{.exact_spread = exact}, ws).tiles(Tier::refine, 0).size(), 1U);
}

// Channels that cancel in every score but those of tiles 20 and 40: the diagonal expects a spread that is not there.
TEST(Sol, ExactSpreadSeesCorrelatedChannels) {
  Problem p(1, 128, 4096, 1, 1, 2);
  std::fill_n(p.q.as<float>(), p.q.numel(), 1.0F);
  for (std::int64_t s = 0; s < 4096; ++s) {
    const std::int64_t tile = s / 64;
    const float rest = tile == 20 ? 1.0F : tile == 40 ? 0.9F : 0.0F;
    p.k.as<float>()[2 * s] = static_cast<float>(tile);
    p.k.as<float>()[2 * s + 1] = rest - static_cast<float>(tile);
  }
  Workspace ws;
  Sol options = {.tau = 2.0F, .neighbors = false};
  EXPECT_THAT(select(p.q, p.k, {}, options, ws).tiles(Tier::refine, 0), testing::ElementsAre(20, 40));
  options.exact_spread = false;
  EXPECT_THAT(select(p.q, p.k, {}, options, ws).tiles(Tier::refine, 0), testing::ElementsAre(20));  // the best, below tau
}

TEST(Sol, NeighborsStay) {
  const Problem p(1, 1000, 1000, 1, 1, 16);
  Workspace ws;
  EXPECT_THAT(select(p.q, p.k, {}, Sol{.tau = 9.0F}, ws).tiles(Tier::refine, 3), testing::IsSupersetOf({5, 6, 7, 8}));
}

TEST(Sol, OptionsOutOfRangeAreRefused) {
  EXPECT_THROW((Sol{.tau = std::numeric_limits<float>::infinity()}).validate(), Error);
  EXPECT_THROW((Sol{.tau = std::nanf("")}).validate(), Error);
  EXPECT_NO_THROW((Sol{.tau = -3.0F}).validate());
}

}  // namespace
}  // namespace winnow
