// Counter-based random numbers, identical on every ISA and device.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace winnow {

// Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

// out[i] ~ N(0,1), a function of (seed, stream, i) alone. Element 4c..4c+3 comes from counter c by Box-Muller in f64.
void fill_normal(std::span<float> out, std::uint64_t seed, std::uint64_t stream = 0);
// out[i] uniform in [0,1), 24 bits.
void fill_uniform(std::span<float> out, std::uint64_t seed, std::uint64_t stream = 0);

}  // namespace winnow
