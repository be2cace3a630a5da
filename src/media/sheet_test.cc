// Contact sheets, the bitmap font, and PNG files decoded back by libpng.
#include "media/sheet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <png.h>

#include <set>
#include <string>
#include <vector>

#include "media/font.h"
#include "media/png.h"
#include "tests/support/temporary_folder.h"
#include "winnow/error.h"

namespace winnow::media {
namespace {

using ::testing::ElementsAre;

Tensor constant_frames(std::int64_t frames, std::int64_t height, std::int64_t width) {
  Tensor t(DType::f32, {frames, height, width, 3});
  const std::int64_t size = height * width * 3;
  for (std::int64_t i = 0; i < t.numel(); ++i) t.as<float>()[i] = static_cast<float>(i / size + 1) / 100.0F;
  return t;
}

bool contains_color(const Image& image, std::uint8_t grey) {
  for (std::size_t i = 0; i < image.rgb.size(); i += 3) {
    if (image.rgb[i] == grey && image.rgb[i + 1] == grey && image.rgb[i + 2] == grey) return true;
  }
  return false;
}

TEST(Sheet, EvenlySpacedFramesIncludeBothEnds) {
  EXPECT_THAT(evenly_spaced(33, 5), ElementsAre(0, 8, 16, 24, 32));
  EXPECT_THAT(evenly_spaced(3, 8), ElementsAre(0, 1, 2));
  EXPECT_THAT(evenly_spaced(9, 1), ElementsAre(0));
  EXPECT_THAT(evenly_spaced(1, 4), ElementsAre(0));
}

TEST(Sheet, ContactSheetShowsThePickedFrames) {
  const Image image = contact_sheet(constant_frames(9, 16, 16), 3);  // frames 0, 4, 8
  EXPECT_TRUE(contains_color(image, 3));
  EXPECT_TRUE(contains_color(image, 13));
  EXPECT_TRUE(contains_color(image, 23));
  EXPECT_FALSE(contains_color(image, 5));
}

TEST(Sheet, LargeFramesAreReducedAndSmallOnesEnlarged) {
  const Image large = contact_sheet(constant_frames(1, 720, 1280), 1);
  EXPECT_LT(large.height, 300);
  EXPECT_TRUE(contains_color(large, 3));
  const Image small = contact_sheet(constant_frames(1, 48, 48), 1);
  EXPECT_GT(small.height, 190);
  const Image wide = contact_sheet(constant_frames(1, 1, 5000), 1);  // degenerate, but no crash
  EXPECT_GT(wide.width, 5000);
}

TEST(Sheet, SideBySideHasOneRowPerClip) {
  const Tensor a = constant_frames(4, 16, 16);
  Tensor b = constant_frames(4, 16, 16);
  for (std::int64_t i = 0; i < b.numel(); ++i) b.as<float>()[i] = 1.0F;
  const Image one = side_by_side({{"dense", a}});
  const Image two = side_by_side({{"dense", a}, {"mean_pool  density 0.31", b}});
  EXPECT_GT(two.height, one.height + 150);
  EXPECT_TRUE(contains_color(two, 255));
  EXPECT_FALSE(contains_color(one, 255));
}

TEST(Sheet, LongLabelsWidenThePicture) {
  const Tensor a = constant_frames(1, 16, 16);
  EXPECT_GE(side_by_side({{std::string(200, 'm'), a}}).width, text_width(std::string(200, 'm'), 2));
}

TEST(Sheet, DifferentSizesAreRefused) {
  const Tensor a = constant_frames(4, 16, 16);
  const Tensor b = constant_frames(4, 16, 17);
  EXPECT_THROW(side_by_side({{"a", a}, {"b", b}}), Error);
  EXPECT_THROW(side_by_side({}), Error);
}

TEST(Font, EveryCharacterOfOurLabelsHasItsOwnGlyph) {
  const std::string characters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;-_+=/%()<>[]*!?'";
  std::set<std::vector<int>> seen;
  for (const char c : characters) seen.insert(std::vector<int>(std::begin(glyph(c).rows), std::end(glyph(c).rows)));
  EXPECT_EQ(seen.size(), characters.size());
  EXPECT_EQ(glyph('\xC3').rows[0], 0x1F);  // a box
  EXPECT_EQ(glyph('q').rows[6], glyph('Q').rows[6]);
}

TEST(Font, TextIsCutOffAtTheEdges) {
  Image image(10, 5, {0, 0, 0});
  draw_text(image, -3, -2, "WIDE TEXT", 3, {255, 255, 255});
  EXPECT_TRUE(contains_color(image, 255));
}

TEST(Png, DecodesBackToTheSamePixels) {
  const tests::TemporaryFolder folder;
  const Image image = side_by_side({{"dense 1.00x", constant_frames(4, 20, 30)}});
  write_png(folder / "a.png", image);
  png_image control{};
  control.version = PNG_IMAGE_VERSION;
  ASSERT_NE(png_image_begin_read_from_file(&control, (folder / "a.png").c_str()), 0) << control.message;
  control.format = PNG_FORMAT_RGB;
  ASSERT_EQ(static_cast<int>(control.width), image.width);
  ASSERT_EQ(static_cast<int>(control.height), image.height);
  std::vector<std::uint8_t> decoded(PNG_IMAGE_SIZE(control));
  ASSERT_NE(png_image_finish_read(&control, nullptr, decoded.data(), 0, nullptr), 0) << control.message;
  EXPECT_EQ(decoded, image.rgb);
  EXPECT_THROW(write_png(folder / "none/a.png", image), Error);
  EXPECT_THROW(write_png(folder / "b.png", Image()), Error);
  EXPECT_THAT(folder.listing(), ElementsAre("a.png"));
}

}  // namespace
}  // namespace winnow::media
