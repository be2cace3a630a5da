#include "device/cpu/amx.h"
#include "exec/cpu/peak_loops.h"

namespace winnow {

double amx_bf16_loop(std::int64_t iterations) {
  // Operands as in a real product, centred and of all sizes, and sums that start over as in attention: on zeros or saturated
  // sums fewer bits toggle, and the clock is up to a third higher than in any product that matters.
  alignas(64) std::uint16_t operands[4][512];
  std::uint32_t state = 1;
  for (auto& tile : operands) {
    for (std::uint16_t& x : tile) {
      state = state * 1664525U + 1013904223U;
      x = static_cast<std::uint16_t>(0x3E00U + (state >> 16U & 0x81FFU));  // +-[0.125, 2)
    }
  }
  amx::configure();  // clears all tiles
  amx::load<4>(operands[0]);
  amx::load<5>(operands[1]);
  amx::load<6>(operands[2]);
  amx::load<7>(operands[3]);
  for (std::int64_t i = 0; i < iterations; ++i) {
    if (i % 4 == 0) {
      amx::zero<0>();
      amx::zero<1>();
      amx::zero<2>();
      amx::zero<3>();
    }
    amx::dot_bf16<0, 4, 6>();
    amx::dot_bf16<1, 4, 7>();
    amx::dot_bf16<2, 5, 6>();
    amx::dot_bf16<3, 5, 7>();
  }
  amx::release();
  return static_cast<double>(iterations) * 4 * 2 * 16 * 16 * 32;
}

}  // namespace winnow
