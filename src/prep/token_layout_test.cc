// Layouts: which token lands in which tile, and what is refused.
#include "winnow/token_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

#include "winnow/error.h"

namespace winnow {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::int32_t> tile(const TokenLayout& layout, std::int64_t t) {
  return {layout.tokens() + layout.begin(t), layout.tokens() + layout.begin(t + 1)};
}

TEST(MakeLayout, RasterOrderOfOneVideoNeedsNone) {
  EXPECT_EQ(make_layout({.num_tokens = 300, .grid = {3, 10, 10}}, {.order = TokenOrder::raster}, 64), nullptr);
  EXPECT_EQ(make_layout({.num_tokens = 300}, {}, 64), nullptr);
  EXPECT_EQ(make_layout({.num_tokens = 0}, {}, 64), nullptr);
  EXPECT_EQ(make_layout({.num_tokens = 1, .grid = {1, 1, 1}}, {.order = TokenOrder::cubes}, 64), nullptr);
}

TEST(MakeLayout, CubesAreTilesWhereTheGridDivides) {
  const auto layout = make_layout({.num_tokens = 8 * 8 * 12, .grid = {8, 8, 12}}, {.order = TokenOrder::cubes}, 64);
  ASSERT_NE(layout, nullptr);
  ASSERT_EQ(layout->tiles(), 12);
  for (std::int64_t t = 0; t < 12; ++t) {
    std::vector<std::int64_t> corners;
    for (const std::int32_t token : tile(*layout, t)) corners.push_back(token / 96 / 4 * 100 + token / 12 % 8 / 4 * 10 + token % 12 / 4);
    EXPECT_THAT(corners, Each(corners.front())) << "tile " << t << " holds tokens of several cubes";
  }
}

TEST(MakeLayout, RaggedGridsKeepEveryTokenOnceInFullTiles) {
  for (const Grid& grid : {Grid{33, 12, 12}, Grid{2, 3, 5}, Grid{5, 9, 7}, Grid{1, 1, 100}}) {
    for (const std::array<int, 3>& cube : {std::array{4, 4, 4}, {2, 8, 4}, {100, 1, 3}}) {
      const std::int64_t n = grid.tokens();
      const auto layout = make_layout({.num_tokens = n, .grid = grid}, {.order = TokenOrder::cubes, .cube = cube}, 64);
      if (layout == nullptr) continue;
      std::vector<std::int32_t> sorted(layout->tokens(), layout->tokens() + n);
      std::ranges::sort(sorted);
      for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(sorted[static_cast<std::size_t>(i)], i);
      EXPECT_EQ(layout->tiles(), (n + 63) / 64);
      EXPECT_TRUE(layout->missing().empty());
    }
  }
}

TEST(MakeLayout, SpansHaveTilesOfTheirOwnAndPaddingHasNone) {
  const std::vector<TokenSpan> spans = {
      {0, 5, SpanKind::exact}, {5, 15, SpanKind::video}, {15, 18, SpanKind::padding}, {18, 20, SpanKind::exact}};
  const auto layout = make_layout({.num_tokens = 20, .spans = spans}, {}, 8);
  ASSERT_EQ(layout->tiles(), 3);
  EXPECT_THAT(tile(*layout, 0), ElementsAre(5, 6, 7, 8, 9, 10, 11, 12));
  EXPECT_THAT(tile(*layout, 1), ElementsAre(13, 14));
  EXPECT_THAT(tile(*layout, 2), ElementsAre(0, 1, 2, 3, 4, 18, 19));
  EXPECT_THAT(layout->parts().exact, ElementsAre(0, 0, 1));
  EXPECT_EQ(layout->exact_tiles(0), 1);
  ASSERT_EQ(layout->missing().size(), 1U);
  EXPECT_EQ(layout->missing()[0].begin, 15);
  EXPECT_EQ(layout->missing()[0].end, 18);
}

TEST(MakeLayout, EveryVideoHasItsOwnGrid) {
  const std::vector<TokenSpan> spans = {{0, 128, SpanKind::video, {2, 8, 8}}, {128, 192, SpanKind::video, {4, 4, 4}}};
  const auto layout = make_layout({.num_tokens = 192, .spans = spans}, {.order = TokenOrder::cubes}, 64);
  EXPECT_THAT(tile(*layout, 0), testing::Contains(64 + 3));  // second frame of the first cube
  EXPECT_THAT(tile(*layout, 2), Each(testing::Ge(128)));
}

TEST(MakeLayout, NoTileStraddlesTwoDocuments) {
  const std::vector<std::int64_t> documents = {0, 1, 64, 64, 129, 200};
  const auto layout = make_layout({.num_tokens = 200, .documents = documents}, {.min_document = 65}, 64);
  ASSERT_EQ(layout->documents(), 5);
  for (std::int64_t d = 0; d < 5; ++d) {
    const TileRange range = layout->document_tiles(d);
    for (std::int64_t t = range.begin; t < range.end; ++t) {
      EXPECT_EQ(layout->document(t), d);
      EXPECT_THAT(tile(*layout, t), Each(testing::AllOf(testing::Ge(documents[static_cast<std::size_t>(d)]),
                                                        testing::Lt(documents[static_cast<std::size_t>(d) + 1]))));
    }
  }
  EXPECT_EQ(layout->document_tiles(2).size(), 0);
  EXPECT_EQ(layout->exact_tiles(1), 1);  // 63 tokens: shorter than min_document
  EXPECT_EQ(layout->exact_tiles(3), 0);  // 65
}

TEST(MakeLayout, PositionsAreNeverGuessed) {
  const std::vector<TokenSpan> spans = {{0, 60, SpanKind::video}, {60, 70, SpanKind::exact}};
  const std::vector<std::int64_t> documents = {0, 60, 120};
  EXPECT_TRUE(positions_known({.num_tokens = 60, .grid = {3, 4, 5}}, TokenOrder::cubes));
  EXPECT_TRUE(positions_known({.num_tokens = 60}, TokenOrder::automatic));
  EXPECT_FALSE(positions_known({.num_tokens = 60}, TokenOrder::cubes));
  EXPECT_FALSE(positions_known({.num_tokens = 70, .grid = {3, 4, 5}}, TokenOrder::raster));  // packed, and nobody says how
  EXPECT_TRUE(positions_known({.num_tokens = 70, .grid = {3, 4, 5}, .spans = spans}, TokenOrder::cubes));
  EXPECT_FALSE(positions_known({.num_tokens = 70, .spans = spans}, TokenOrder::cubes));
  EXPECT_TRUE(positions_known({.num_tokens = 120, .grid = {3, 4, 5}, .documents = documents}, TokenOrder::cubes));
}

void expect_refused(const TokenSequence& sequence, const LayoutOptions& options, const char* what) {
  try {
    make_layout(sequence, options, 64);
    ADD_FAILURE() << what << " was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(what));
  }
}

TEST(Grids, CountTheirTokens) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 40U;
  EXPECT_EQ((Grid{3, 4, 5}).tokens(), 60);
  EXPECT_EQ((Grid{}).tokens(), 0);
  EXPECT_EQ((Grid{3, -4, -5}).tokens(), 0);
  EXPECT_EQ((Grid{kHuge, kHuge, kHuge}).tokens(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ((Grid{1, 1, std::numeric_limits<std::int64_t>::max()}).tokens(), std::numeric_limits<std::int64_t>::max());
}

TEST(MakeLayout, SequencesThatContradictThemselvesAreRefused) {
  const std::vector<TokenSpan> gap = {{0, 5, SpanKind::video}, {6, 10, SpanKind::exact}};
  expect_refused({.num_tokens = 10, .spans = gap}, {}, "spans[1]");
  const std::vector<TokenSpan> part = {{0, 5, SpanKind::video}};
  expect_refused({.num_tokens = 10, .spans = part}, {}, "spans");
  const std::vector<TokenSpan> grid = {{0, 10, SpanKind::video, {1, 3, 3}}};
  expect_refused({.num_tokens = 10, .spans = grid}, {}, "grid");
  const std::vector<std::int64_t> documents = {0, 4, 10};
  const std::vector<TokenSpan> across = {{0, 10, SpanKind::video}};
  expect_refused({.num_tokens = 10, .spans = across, .documents = documents}, {}, "spans[0]");
  const std::vector<std::int64_t> descending = {0, 8, 4, 10};
  expect_refused({.num_tokens = 10, .documents = descending}, {}, "documents");
  const std::vector<std::int64_t> incomplete = {0, 4};
  expect_refused({.num_tokens = 10, .documents = incomplete}, {}, "documents");
  expect_refused({.num_tokens = 10}, {.cube = {4, 0, 4}}, "cube");
  expect_refused({.num_tokens = -1}, {}, "num_tokens");
}

}  // namespace
}  // namespace winnow
