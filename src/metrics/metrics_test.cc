// Metrics against closed forms and direct definitions.
#include "winnow/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/numeric.h"
#include "core/random.h"
#include "winnow/error.h"

namespace winnow {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

Tensor video(std::int64_t frames, std::int64_t height, std::int64_t width, float value) {
  Tensor t(DType::f32, {frames, height, width, 3});
  std::fill_n(t.as<float>(), t.numel(), value);
  return t;
}

Tensor noise(std::int64_t frames, std::int64_t height, std::int64_t width, std::uint64_t seed) {
  Tensor t(DType::f32, {frames, height, width, 3});
  fill_uniform({t.as<float>(), static_cast<std::size_t>(t.numel())}, seed);
  return t;
}

TEST(RelativeError, ClosedForms) {
  const float a[] = {1.0F, -2.0F, 3.0F};
  const float b[] = {1.5F, -2.0F, 4.0F};
  const TensorView va(a, DType::f32, {3});
  const TensorView vb(b, DType::f32, {3});
  EXPECT_DOUBLE_EQ(rel_l1(va, vb), 1.5 / 7.5);
  EXPECT_DOUBLE_EQ(rel_l2(va, vb), std::sqrt(1.25 / 22.25));
  EXPECT_DOUBLE_EQ(cosine(va, vb), 17.5 / std::sqrt(14.0 * 22.25));
  EXPECT_EQ(rel_l1(va, va), 0.0);
  EXPECT_NEAR(cosine(va, va), 1.0, 1e-15);
}

TEST(RelativeError, ZerosAndNonFinite) {
  const float zero[] = {0.0F, 0.0F};
  const float one[] = {1.0F, 0.0F};
  const float nan[] = {std::nanf(""), 0.0F};
  const TensorView z(zero, DType::f32, {2});
  const TensorView o(one, DType::f32, {2});
  const TensorView n(nan, DType::f32, {2});
  EXPECT_EQ(rel_l1(z, z), 0.0);
  EXPECT_EQ(rel_l2(z, z), 0.0);
  EXPECT_EQ(cosine(z, z), 1.0);
  EXPECT_EQ(rel_l1(o, z), kInf);
  EXPECT_EQ(rel_l2(o, z), kInf);
  EXPECT_EQ(cosine(o, z), 0.0);
  EXPECT_TRUE(std::isnan(rel_l1(n, o)));
  EXPECT_TRUE(std::isnan(rel_l2(n, z)));
  EXPECT_TRUE(std::isnan(cosine(n, o)));
}

TEST(RelativeError, AnyStridesAndDtypes) {
  constexpr std::int64_t kRows = 3;
  constexpr std::int64_t kColumns = 600;  // more than one chunk
  std::vector<float> a(kRows * kColumns);
  fill_normal(a, 1);
  std::vector<double> transposed(a.size());
  std::vector<bf16> narrow(a.size());
  double error = 0.0;
  double norm = 0.0;
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < kColumns; ++c) {
      const auto i = static_cast<std::size_t>(r * kColumns + c);
      transposed[static_cast<std::size_t>(c * kRows + r)] = double{a[i]};
      narrow[i] = to_bf16(a[i]);
      error += std::abs(double{to_f32(narrow[i])} - double{a[i]});
      norm += std::abs(double{a[i]});
    }
  }
  const std::int64_t shape[] = {kRows, kColumns};
  const std::int64_t strides[] = {1, kRows};
  const TensorView reference = TensorView::strided(transposed.data(), DType::f64, shape, strides, 2);
  EXPECT_EQ(rel_l2(TensorView(a.data(), DType::f32, {kRows, kColumns}), reference), 0.0);
  EXPECT_DOUBLE_EQ(rel_l1(TensorView(narrow.data(), DType::bf16, {kRows, kColumns}), reference), error / norm);
}

TEST(RelativeError, ShapesAndDtypesMustFit) {
  const float a[6] = {};
  EXPECT_THROW(rel_l1(TensorView(a, DType::f32, {6}), TensorView(a, DType::f32, {2, 3})), Error);
  EXPECT_THROW(rel_l2(TensorView(a, DType::i32, {6}), TensorView(a, DType::f32, {6})), Error);
  EXPECT_EQ(rel_l1(TensorView(a, DType::f32, {0}), TensorView(a, DType::f32, {0})), 0.0);
  const TensorView nothing(static_cast<void*>(nullptr), DType::f32, {6});
  EXPECT_THROW(rel_l1(nothing, TensorView(a, DType::f32, {6})), Error);
  EXPECT_THROW(cosine(TensorView(a, DType::f32, {6}), nothing), Error);
}

TEST(Psnr, ClosedForms) {
  EXPECT_NEAR(psnr(video(2, 4, 5, 0.6F), video(2, 4, 5, 0.5F)), 20.0, 1e-5);
  EXPECT_EQ(psnr(video(1, 4, 5, 0.5F), video(1, 4, 5, 0.5F)), 100.0);
  Tensor one_pixel = video(2, 4, 5, 0.5F);
  one_pixel.as<float>()[7] = 1.0F;  // the error is averaged over the whole video, not per frame
  EXPECT_NEAR(psnr(one_pixel, video(2, 4, 5, 0.5F)), 10.0 * std::log10(120.0 / 0.25), 1e-9);
  one_pixel.as<float>()[0] = std::nanf("");
  EXPECT_TRUE(std::isnan(psnr(one_pixel, video(2, 4, 5, 0.5F))));
}

TEST(Ssim, ClosedForms) {
  const Tensor frame = noise(2, 13, 17, 1);
  EXPECT_NEAR(ssim(frame, frame), 1.0, 1e-12);
  const double a = 0.25;
  const double b = 0.75;
  EXPECT_NEAR(ssim(video(1, 11, 11, 0.25F), video(1, 11, 11, 0.75F)), (2 * a * b + 1e-4) / (a * a + b * b + 1e-4), 1e-9);
}

TEST(Ssim, MatchesTheTwoDimensionalDefinition) {
  constexpr std::int64_t kHeight = 12;
  constexpr std::int64_t kWidth = 14;
  const Tensor x = noise(1, kHeight, kWidth, 1);
  const Tensor y = noise(1, kHeight, kWidth, 2);
  const auto luma = [](const Tensor& t, std::int64_t row, std::int64_t column) {
    const float* p = t.as<float>() + (row * kWidth + column) * 3;
    return 0.299 * double{p[0]} + 0.587 * double{p[1]} + 0.114 * double{p[2]};
  };
  double weight_sum = 0.0;
  for (int i = -5; i <= 5; ++i)
    for (int j = -5; j <= 5; ++j) weight_sum += std::exp(-(i * i + j * j) / 4.5);
  double total = 0.0;
  for (std::int64_t r = 5; r + 5 < kHeight; ++r) {
    for (std::int64_t c = 5; c + 5 < kWidth; ++c) {
      double mx = 0, my = 0;
      const auto weighted = [&](auto f) {
        double s = 0;
        for (int i = -5; i <= 5; ++i)
          for (int j = -5; j <= 5; ++j)
            s += std::exp(-(i * i + j * j) / 4.5) / weight_sum * f(luma(x, r + i, c + j), luma(y, r + i, c + j));
        return s;
      };
      mx = weighted([](double u, double) { return u; });
      my = weighted([](double, double v) { return v; });
      const double vx = weighted([&](double u, double) { return (u - mx) * (u - mx); });
      const double vy = weighted([&](double, double v) { return (v - my) * (v - my); });
      const double cov = weighted([&](double u, double v) { return (u - mx) * (v - my); });
      total += (2 * mx * my + 1e-4) * (2 * cov + 9e-4) / ((mx * mx + my * my + 1e-4) * (vx + vy + 9e-4));
    }
  }
  EXPECT_NEAR(ssim(x, y), total / (2.0 * 4.0), 1e-10);
}

TEST(Video, WrongShapesAreRefused) {
  EXPECT_THROW(ssim(video(1, 10, 20, 0.0F), video(1, 10, 20, 0.0F)), Error);
  EXPECT_THROW(psnr(video(1, 10, 20, 0.0F), video(2, 10, 20, 0.0F)), Error);
  EXPECT_THROW(psnr(video(0, 10, 20, 0.0F), video(0, 10, 20, 0.0F)), Error);
  const TensorView nothing(static_cast<void*>(nullptr), DType::f32, {1, 20, 20, 3});
  EXPECT_THROW(psnr(nothing, nothing), Error);
  EXPECT_THROW(ssim(nothing, nothing), Error);
  const float gray[100] = {};
  EXPECT_THROW(psnr(TensorView(gray, DType::f32, {1, 10, 10, 1}), TensorView(gray, DType::f32, {1, 10, 10, 1})), Error);
}

TEST(Spearman, ClosedForms) {
  const double up[] = {1, 2, 3, 4, 5};
  const double cubes[] = {1, 8, 27, 64, 125};
  const double down[] = {9, 7, 5, 3, -kInf};
  EXPECT_DOUBLE_EQ(spearman(up, cubes), 1.0);
  EXPECT_DOUBLE_EQ(spearman(up, down), -1.0);
  const double swapped[] = {2, 1, 3, 4, 5};
  EXPECT_DOUBLE_EQ(spearman(up, swapped), 1.0 - 6.0 * 2.0 / (5 * 24));
}

TEST(Spearman, TiesGetAverageRanks) {
  const double a[] = {1, 2, 2, 3};  // ranks 1, 2.5, 2.5, 4
  const double b[] = {1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(spearman(a, b), 4.5 / std::sqrt(4.5 * 5.0));
}

TEST(Spearman, DegenerateInputs) {
  const double constant[] = {2, 2, 2};
  const double b[] = {1, 2, 3};
  const double nan[] = {1, std::nan(""), 3};
  EXPECT_TRUE(std::isnan(spearman(constant, b)));
  EXPECT_TRUE(std::isnan(spearman(nan, b)));
  EXPECT_THROW(spearman(std::span(b, 1), std::span(b, 1)), Error);
  EXPECT_THROW(spearman(std::span(b, 2), std::span(b, 3)), Error);
}

}  // namespace
}  // namespace winnow
