// Windows against distances between single tokens.
#include "winnow/select/window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "select/select_testing.h"
#include "winnow/error.h"
#include "winnow/workspace.h"

namespace winnow {
namespace {

using testing_select::Problem;

PlanSpec on(const Grid& grid) {
  PlanSpec spec;
  spec.grid = grid;
  return spec;
}

// Axis by axis, the least distance over all pairs of a query token and a key token.
bool near_by_tokens(const PlanGeometry& g, const Grid& grid, const Window& o, std::int64_t i, std::int64_t j) {
  const auto coordinates = [&](std::int64_t token) {
    return std::vector<std::int64_t>{token / (grid.height * grid.width), token / grid.width % grid.height, token % grid.width};
  };
  const double reach[3] = {static_cast<double>(o.frames) * static_cast<double>(grid.frames),
                           static_cast<double>(o.height) * static_cast<double>(grid.height),
                           static_cast<double>(o.width) * static_cast<double>(grid.width)};
  const auto range = [&](std::int64_t tile, int size, int axis) {
    std::pair<std::int64_t, std::int64_t> r{1 << 30, -1};
    for (std::int64_t t = tile * size; t < std::min(g.Sk, (tile + 1) * size); ++t) {
      const std::int64_t c = coordinates(t)[static_cast<std::size_t>(axis)];
      r = {std::min(r.first, c), std::max(r.second, c)};
    }
    return r;
  };
  if (range(j, g.tile_k, 0).first < o.sink_frames) return true;
  for (int axis = 0; axis < 3; ++axis) {
    const auto q = range(i, g.tile_q, axis);
    const auto k = range(j, g.tile_k, axis);
    std::int64_t least = 1 << 30;
    for (std::int64_t x = q.first; x <= q.second; ++x)
      for (std::int64_t y = k.first; y <= k.second; ++y) least = std::min(least, std::abs(x - y));
    if (static_cast<double>(least) > reach[axis]) return false;
  }
  return true;
}

TEST(Window, KeepsWhatIsNearOnTheGrid) {
  const Grid grids[] = {{7, 11, 13}, {33, 12, 12}, {1, 40, 50}, {3, 1, 200}, {2, 64, 64}};
  const Window windows[] = {{},
                            {.frames = 0.2F, .height = 0.1F, .width = 0.3F, .sink_frames = 0},
                            {.frames = 0.0F, .height = 0.0F, .width = 0.0F, .sink_frames = 0}};
  for (const Grid& grid : grids) {
    const Problem p(1, grid.tokens(), grid.tokens(), 2, 1, 4);
    for (const Window& window : windows) {
      Workspace ws;
      const TilePlan plan = select(p.q, p.k, on(grid), window, ws);
      const PlanGeometry& g = plan.geometry();
      for (std::int64_t i = 0; i < g.Gq(); ++i) {
        std::vector<std::int32_t> expected;
        for (std::int64_t j = 0; j < g.Gk(); ++j) {
          if (near_by_tokens(g, grid, window, i, j)) expected.push_back(static_cast<std::int32_t>(j));
        }
        for (std::int64_t h = 0; h < 2; ++h) EXPECT_THAT(plan.tiles(Tier::refine, g.row(0, h, i)), testing::ElementsAreArray(expected));
      }
    }
  }
}

TEST(Window, FrameBandsAndSinks) {
  const Grid grid{16, 8, 16};  // a frame is one query tile, two key tiles
  const Problem p(1, grid.tokens(), grid.tokens(), 1, 1, 4);
  Workspace ws;
  const TilePlan band = select(p.q, p.k, on(grid), Window{.frames = 1.0F / 16, .sink_frames = 0}, ws);
  EXPECT_THAT(band.tiles(Tier::refine, 8), testing::ElementsAre(14, 15, 16, 17, 18, 19));
  const TilePlan sink = select(p.q, p.k, on(grid), Window{.frames = 0.0F, .sink_frames = 2}, ws);
  EXPECT_THAT(sink.tiles(Tier::refine, 8), testing::ElementsAre(0, 1, 2, 3, 16, 17));
}

// Radial attention: any grid is accepted, not only multiples of 128 tokens; a new resolution in one process gets a new plan.
TEST(Window, AnyGridAndTwoResolutionsInOneProcess) {
  Workspace ws;
  for (const Grid& grid : {Grid{21, 24, 40}, Grid{5, 7, 9}, Grid{21, 24, 40}}) {
    const Problem p(1, grid.tokens(), grid.tokens(), 1, 1, 1);
    const TilePlan plan = select(p.q, p.k, on(grid), Window{}, ws);
    EXPECT_EQ(plan.geometry().Sk, grid.tokens());
    EXPECT_GT(plan.density(), 0.0);
  }
}

TEST(Window, UnknownPositionsAreErrorsBeforeAnyWork) {
  const Problem p(1, 1001, 1001, 1, 1, 4);
  const Problem cross(1, 1001, 77, 1, 1, 4);
  Workspace ws;
  EXPECT_THROW(select(p.q, p.k, {}, Window{}, ws), Error);
  EXPECT_THROW(select(p.q, p.k, on({7, 11, 12}), Window{}, ws), Error);
  EXPECT_THROW(select(cross.q, cross.k, on({7, 11, 13}), Window{}, ws), Error);
  EXPECT_EQ(ws.peak_bytes(), 0U);
}

TEST(Window, OptionsOutOfRangeAreRefused) {
  for (const Window& bad : {Window{.frames = -0.1F}, Window{.height = 1.5F}, Window{.width = std::nanf("")}, Window{.sink_frames = -1}}) {
    EXPECT_THROW(bad.validate(), Error);
  }
}

}  // namespace
}  // namespace winnow
