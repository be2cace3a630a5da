#include "core/random.h"

#include <cmath>
#include <cstddef>
#include <numbers>

namespace winnow {

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> c, std::array<std::uint32_t, 2> key) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53U;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57U;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9U;
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85U;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = kMultiplier0 * c[0];
    const std::uint64_t p1 = kMultiplier1 * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ key[0], static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return c;
}

namespace {

template <class Convert>
void fill(std::span<float> out, std::uint64_t seed, std::uint64_t stream, Convert convert) {
  const std::array<std::uint32_t, 2> key{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  for (std::size_t i = 0; i < out.size(); i += 4) {
    const std::uint64_t counter = i / 4;
    const auto bits = philox4x32({static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
                                  static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)},
                                 key);
    const std::array<float, 4> values = convert(bits);
    for (std::size_t j = 0; j < 4 && i + j < out.size(); ++j) out[i + j] = values[j];
  }
}

}  // namespace

void fill_normal(std::span<float> out, std::uint64_t seed, std::uint64_t stream) {
  fill(out, seed, stream, [](const std::array<std::uint32_t, 4>& bits) {
    std::array<float, 4> values{};
    for (std::size_t pair = 0; pair < 2; ++pair) {
      const double u = (static_cast<double>(bits[2 * pair]) + 0.5) * 0x1p-32;  // (0,1): the logarithm is finite
      const double angle = 2.0 * std::numbers::pi * (static_cast<double>(bits[2 * pair + 1]) * 0x1p-32);
      const double radius = std::sqrt(-2.0 * std::log(u));
      values[2 * pair] = static_cast<float>(radius * std::cos(angle));
      values[2 * pair + 1] = static_cast<float>(radius * std::sin(angle));
    }
    return values;
  });
}

void fill_uniform(std::span<float> out, std::uint64_t seed, std::uint64_t stream) {
  fill(out, seed, stream, [](const std::array<std::uint32_t, 4>& bits) {
    std::array<float, 4> values{};
    for (std::size_t j = 0; j < 4; ++j) values[j] = static_cast<float>(bits[j] >> 8) * 0x1p-24F;
    return values;
  });
}

}  // namespace winnow
