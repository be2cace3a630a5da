// PSNR and SSIM of float videos [F,H,W,3] in [0,1].
#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "core/threads.h"
#include "winnow/error.h"
#include "winnow/metrics.h"

namespace winnow {

namespace {

void check_video(const char* metric, const TensorView& value, const TensorView& reference) {
  const auto check = [metric](const TensorView& x) {
    if (x.rank != 4 || x.size(3) != 3 || x.dtype != DType::f32 || x.device != Device::cpu || !x.is_contiguous()) {
      throw Error(metric, "expected contiguous [F,H,W,3] f32 in CPU memory, got " + x.describe());
    }
    if (x.data == nullptr && x.numel() > 0) throw Error(metric, "expected " + x.describe() + " in memory, got a null pointer");
  };
  check(value);
  check(reference);
  if (value.shape != reference.shape) {
    throw Error(metric, "value: expected the reference's shape " + reference.describe() + ", got " + value.describe());
  }
  if (value.numel() == 0) throw Error(metric, "expected at least one pixel, got " + value.describe());
}

// Wang, Bovik, Sheikh, Simoncelli: Image quality assessment: from error visibility to structural similarity, 2004.
constexpr int kWindow = 11;
constexpr double kSigma = 1.5;
constexpr double kC1 = 0.01 * 0.01;  // (K1 L)^2 with L = 1
constexpr double kC2 = 0.03 * 0.03;

std::array<double, kWindow> gaussian() {
  std::array<double, kWindow> w{};
  double sum = 0.0;
  for (int i = 0; i < kWindow; ++i) {
    const double x = i - kWindow / 2;
    w[static_cast<std::size_t>(i)] = std::exp(-x * x / (2.0 * kSigma * kSigma));
    sum += w[static_cast<std::size_t>(i)];
  }
  for (double& x : w) x /= sum;
  return w;
}

// Weighted sums of one window position: of x, y, x^2, y^2, xy.
using Moments = std::array<double, 5>;

double similarity(const Moments& m) {
  const double var_x = m[2] - m[0] * m[0];
  const double var_y = m[3] - m[1] * m[1];
  const double covariance = m[4] - m[0] * m[1];
  return (2.0 * m[0] * m[1] + kC1) * (2.0 * covariance + kC2) / ((m[0] * m[0] + m[1] * m[1] + kC1) * (var_x + var_y + kC2));
}

// BT.601.
double luma(const float* rgb) { return 0.299 * double{rgb[0]} + 0.587 * double{rgb[1]} + 0.114 * double{rgb[2]}; }

// One frame: the window is separable, so moments are filtered along x, then along y.
double frame_ssim(const float* value, const float* reference, std::int64_t height, std::int64_t width) {
  static const std::array<double, kWindow> weights = gaussian();
  const std::int64_t columns = width - kWindow + 1;
  std::vector<Moments> along_x(static_cast<std::size_t>(height * columns));
  std::vector<Moments> pixels(static_cast<std::size_t>(width));
  const auto filter = [](const Moments* m, std::int64_t stride) {
    Moments sum{};
    for (int i = 0; i < kWindow; ++i) {
      for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += weights[static_cast<std::size_t>(i)] * m[i * stride][c];
    }
    return sum;
  };
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      const double a = luma(value + (y * width + x) * 3);
      const double b = luma(reference + (y * width + x) * 3);
      pixels[static_cast<std::size_t>(x)] = {a, b, a * a, b * b, a * b};
    }
    for (std::int64_t x = 0; x < columns; ++x)
      along_x[static_cast<std::size_t>(y * columns + x)] = filter(&pixels[static_cast<std::size_t>(x)], 1);
  }
  double sum = 0.0;
  for (std::int64_t y = 0; y + kWindow <= height; ++y) {
    for (std::int64_t x = 0; x < columns; ++x) sum += similarity(filter(&along_x[static_cast<std::size_t>(y * columns + x)], columns));
  }
  return sum / static_cast<double>((height - kWindow + 1) * columns);
}

}  // namespace

double psnr(const TensorView& value, const TensorView& reference) {
  check_video("psnr", value, reference);
  const float* a = value.as<float>();
  const float* b = reference.as<float>();
  double sum = 0.0;
  for (std::int64_t i = 0; i < value.numel(); ++i) {
    const double d = double{a[i]} - double{b[i]};
    sum += d * d;
  }
  const double mse = sum / static_cast<double>(value.numel());
  constexpr double kCap = 100.0;  // equal videos are infinitely far apart otherwise, and averages useless
  const double decibel = -10.0 * std::log10(mse);
  return decibel > kCap ? kCap : decibel;
}

double ssim(const TensorView& value, const TensorView& reference) {
  check_video("ssim", value, reference);
  const std::int64_t frames = value.size(0);
  const std::int64_t height = value.size(1);
  const std::int64_t width = value.size(2);
  if (height < kWindow || width < kWindow) throw Error("ssim", "expected frames of at least 11x11, got " + value.describe());
  std::vector<double> by_frame(static_cast<std::size_t>(frames));
  parallel_for(frames, [&](std::int64_t f, int) {
    const std::int64_t offset = f * height * width * 3;
    by_frame[static_cast<std::size_t>(f)] = frame_ssim(value.as<float>() + offset, reference.as<float>() + offset, height, width);
  });
  double sum = 0.0;
  for (const double s : by_frame) sum += s;
  return sum / static_cast<double>(frames);
}

}  // namespace winnow
