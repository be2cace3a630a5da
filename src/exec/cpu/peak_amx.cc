#include "device/cpu/amx.h"
#include "exec/cpu/peak_loops.h"

namespace winnow {

double amx_bf16_loop(std::int64_t iterations) {
  amx::configure();  // clears all tiles
  for (std::int64_t i = 0; i < iterations; ++i) {
    amx::dot_bf16<0, 4, 6>();
    amx::dot_bf16<1, 4, 7>();
    amx::dot_bf16<2, 5, 6>();
    amx::dot_bf16<3, 5, 7>();
  }
  amx::release();
  return static_cast<double>(iterations) * 4 * 2 * 16 * 16 * 32;
}

}  // namespace winnow
