// Register-only loops, one translation unit per instruction set. Each returns the floating-point operations it did.
#pragma once

#include <cstdint>

namespace winnow {

double amx_bf16_loop(std::int64_t iterations);
double avx512_f32_loop(std::int64_t iterations);

}  // namespace winnow
