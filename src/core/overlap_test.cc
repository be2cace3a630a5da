// Overlap of strided views, against every element of small ones.
#include "core/overlap.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "winnow/tensor.h"

namespace winnow {
namespace {

// The byte offsets of every element from `base`, one entry per byte and element.
std::vector<std::int64_t> bytes_of(const TensorView& view, const std::byte* base) {
  std::vector<std::int64_t> bytes;
  const auto width = static_cast<std::int64_t>(dtype_bytes(view.dtype));
  for (std::int64_t i = 0; i < view.numel(); ++i) {
    std::int64_t at = 0;
    std::int64_t rest = i;
    for (int axis = view.rank; axis-- > 0;) {
      at += rest % view.size(axis) * view.stride(axis);
      rest /= view.size(axis);
    }
    for (std::int64_t byte = 0; byte < width; ++byte) bytes.push_back(static_cast<const std::byte*>(view.data) - base + at * width + byte);
  }
  return bytes;
}

bool overlap_by_bytes(const TensorView& a, const TensorView& b, const std::byte* base) {
  const std::vector<std::int64_t> of_a = bytes_of(a, base);
  const std::set<std::int64_t> in_a(of_a.begin(), of_a.end());
  for (const std::int64_t byte : bytes_of(b, base)) {
    if (in_a.contains(byte)) return true;
  }
  return false;
}

bool overlaps_itself_by_bytes(const TensorView& view, const std::byte* base) {
  const std::vector<std::int64_t> bytes = bytes_of(view, base);
  return std::set<std::int64_t>(bytes.begin(), bytes.end()).size() != bytes.size();
}

std::string describe(const TensorView& view, const std::byte* base) {
  std::string text = view.describe() + " at " + std::to_string(static_cast<const std::byte*>(view.data) - base) + " strides";
  for (int axis = 0; axis < view.rank; ++axis) text.append(" ").append(std::to_string(view.stride(axis)));
  return text;
}

TEST(Overlap, AgreesWithEveryByteOfRandomViews) {
  static std::byte memory[1 << 16];
  std::byte* middle = memory + sizeof memory / 2;
  std::mt19937 random(7);
  const auto between = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const auto any_view = [&] {
    const int rank = between(0, 4);
    std::array<std::int64_t, 4> shape{};
    std::array<std::int64_t, 4> strides{};
    for (int axis = 0; axis < rank; ++axis) {
      const auto i = static_cast<std::size_t>(axis);
      shape[i] = between(0, 9) == 0 ? 0 : between(1, 4);
      strides[i] = between(0, 3) == 0 ? between(-40, 40) : between(0, 3) * between(1, 3) * (between(0, 1) == 0 ? 4 : 16);
    }
    const DType dtype = between(0, 1) == 0 ? DType::f32 : DType::bf16;
    return TensorView::strided(middle + 2 * between(-60, 60), dtype, shape.data(), strides.data(), rank);
  };
  int overlapping = 0;
  int folded = 0;
  constexpr int kCases = 20000;
  for (int i = 0; i < kCases; ++i) {
    const TensorView a = any_view();
    const TensorView b = any_view();
    const bool expected = overlap_by_bytes(a, b, middle);
    ASSERT_EQ(overlap(a, b), expected) << describe(a, middle) << " and " << describe(b, middle);
    ASSERT_EQ(overlap(b, a), expected) << describe(a, middle) << " and " << describe(b, middle);
    const bool itself = overlaps_itself_by_bytes(a, middle);
    ASSERT_EQ(overlaps_itself(a), itself) << describe(a, middle);
    overlapping += expected ? 1 : 0;
    folded += itself ? 1 : 0;
  }
  EXPECT_GT(overlapping, kCases / 20);  // both answers were tested
  EXPECT_LT(overlapping, kCases - kCases / 20);
  EXPECT_GT(folded, kCases / 20);
  EXPECT_LT(folded, kCases - kCases / 20);
}

TEST(Overlap, LargeInterleavedViewsAreDecided) {
  // q, k, v of one [S,3,H,D] buffer, and halves of the heads of one of them: 75600 tokens, 40 heads, never touched.
  constexpr std::int64_t S = 75600, H = 40, D = 128;
  auto* base = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40U);
  const auto part = [&](std::int64_t offset, std::int64_t heads, std::int64_t dim) {
    const std::int64_t shape[] = {1, S, heads, dim};
    const std::int64_t strides[] = {S * 3 * H * D, 3 * H * D, D, 1};
    return TensorView::strided(base + 2 * offset, DType::bf16, shape, strides, 4);
  };
  EXPECT_FALSE(overlap(part(0, H, D), part(H * D, H, D)));
  EXPECT_FALSE(overlap(part(0, H / 2, D), part(H / 2 * D, H / 2, D)));
  EXPECT_FALSE(overlap(part(0, H, D / 2), part(D / 2, H, D / 2)));
  EXPECT_TRUE(overlap(part(0, H, D), part((H - 1) * D, H, D)));
  EXPECT_TRUE(overlap(part(0, H, D), part(S * 3 * H * D - 2 * H * D - 1, 1, 1)));  // the last element
  EXPECT_FALSE(overlap(part(0, H, D), part(S * 3 * H * D - 2 * H * D, 1, 1)));
  EXPECT_FALSE(overlaps_itself(part(0, H, D)));
  EXPECT_TRUE(overlaps_itself(part(0, 3 * H + 1, D)));
  // Heads before tokens in one view, after them in the other: strides of one are multiples of the other's.
  const std::int64_t shape[] = {1, H, S};
  const std::int64_t strides[] = {H * S, S, 1};
  const TensorView rows = TensorView::strided(base + 2 * H * D * S * 3, DType::f32, shape, strides, 3);
  EXPECT_FALSE(overlap(part(0, H, D), rows));
  EXPECT_TRUE(overlap(part(0, H, D), TensorView::strided(base + 4, DType::f32, shape, strides, 3)));
}

TEST(Overlap, AddressableViewsEndBefore2To62Bytes) {
  TensorView view(static_cast<void*>(nullptr), DType::f32, {2, 3, 4});
  EXPECT_TRUE(is_addressable(view));
  constexpr std::int64_t kLimit = std::int64_t{1} << 60;  // of f32
  for (const std::int64_t sign : {1, -1}) {
    view.strides = {0, sign * (kLimit / 2 - 2), 1};
    EXPECT_TRUE(is_addressable(view));
    view.strides = {0, sign * (kLimit / 2 - 1), 1};
    EXPECT_FALSE(is_addressable(view));
  }
  view.strides = {std::numeric_limits<std::int64_t>::min(), 4, 1};
  EXPECT_FALSE(is_addressable(view));
  view.shape = {1, 3, 4};  // an axis of one element goes nowhere
  EXPECT_TRUE(is_addressable(view));
}

TEST(Overlap, ViewsWithoutDataNeverDo) {
  const TensorView none;
  EXPECT_FALSE(overlap(none, none));
  EXPECT_FALSE(overlaps_itself(none));
  float x = 0.0F;
  TensorView here(&x, DType::f32, {1});
  TensorView elsewhere = here;
  EXPECT_TRUE(overlap(here, elsewhere));
  elsewhere.device = Device::cuda;
  EXPECT_FALSE(overlap(here, elsewhere));
}

}  // namespace
}  // namespace winnow
