#include "dit/codec.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "core/threads.h"
#include "winnow/error.h"

namespace winnow::dit {

BlockDctCodec::BlockDctCodec(const CodecConfig& config) : config_(config) {
  const std::int64_t b = config.block_size;
  for (std::int64_t k = 0; k < b; ++k) {
    const double scale = std::sqrt((k == 0 ? 1.0 : 2.0) / static_cast<double>(b));
    for (std::int64_t n = 0; n < b; ++n) {
      const double angle = std::numbers::pi * static_cast<double>((2 * n + 1) * k) / static_cast<double>(2 * b);
      basis_.push_back(static_cast<float>(scale * std::cos(angle)));
    }
  }
}

Tensor BlockDctCodec::decode(const TensorView& latents) const {
  if (latents.rank != 5 || latents.size(0) != 1 || latents.size(1) != config_.z_dim || latents.dtype != DType::f32 ||
      !latents.is_contiguous()) {
    throw Error("codec", "latents: expected contiguous [1," + std::to_string(config_.z_dim) + ",F,h,w] f32, got " + latents.describe());
  }
  const std::int64_t b = config_.block_size;
  const std::int64_t bb = b * b;
  const std::int64_t frames = latents.size(2);
  const std::int64_t h = latents.size(3);
  const std::int64_t w = latents.size(4);
  const std::int64_t plane = frames * h * w;  // distance between channels
  Tensor out(DType::f32, {frames, h * b, w * b, 3});
  parallel_for(frames * h, [&](std::int64_t row, int) {
    const std::int64_t frame = row / h;
    const std::int64_t y0 = row % h * b;
    std::vector<float> c(static_cast<std::size_t>(bb));
    std::vector<float> half(static_cast<std::size_t>(bb));  // [ky, x]
    for (std::int64_t x0 = 0; x0 < w; ++x0) {
      for (std::int64_t rgb = 0; rgb < 3; ++rgb) {
        for (std::int64_t k = 0; k < bb; ++k) {
          const std::int64_t channel = rgb * bb + k;
          const auto ch = static_cast<std::size_t>(channel);
          c[static_cast<std::size_t>(k)] =
              latents.as<float>()[channel * plane + row * w + x0] * config_.latents_std[ch] + config_.latents_mean[ch];
        }
        for (std::int64_t ky = 0; ky < b; ++ky) {
          for (std::int64_t x = 0; x < b; ++x) {
            float sum = 0.0F;
            for (std::int64_t kx = 0; kx < b; ++kx)
              sum += c[static_cast<std::size_t>(ky * b + kx)] * basis_[static_cast<std::size_t>(kx * b + x)];
            half[static_cast<std::size_t>(ky * b + x)] = sum;
          }
        }
        for (std::int64_t y = 0; y < b; ++y) {
          for (std::int64_t x = 0; x < b; ++x) {
            float p = 0.0F;
            for (std::int64_t ky = 0; ky < b; ++ky)
              p += half[static_cast<std::size_t>(ky * b + x)] * basis_[static_cast<std::size_t>(ky * b + y)];
            out.as<float>()[((frame * h * b + y0 + y) * w * b + x0 * b + x) * 3 + rgb] = (std::clamp(p, -1.0F, 1.0F) + 1.0F) * 0.5F;
          }
        }
      }
    }
  });
  return out;
}

}  // namespace winnow::dit
