#include <immintrin.h>

#include "exec/cpu/peak_loops.h"

namespace winnow {

double avx512_f32_loop(std::int64_t iterations) {
  // Two per cycle with a latency of four: eight chains would do, twelve leave room. Named, to stay in registers.
  constexpr int kChains = 12;
  const __m512 one = _mm512_set1_ps(1.0F);
  const __m512 half = _mm512_set1_ps(0.5F);
  __m512 a = one, b = one, c = one, d = one, e = one, f = one, g = one, h = one, i = one, j = one, k = one, l = one;
  for (std::int64_t n = 0; n < iterations; ++n) {
    asm volatile(
        "vfmadd213ps %12, %12, %0\n\tvfmadd213ps %12, %12, %1\n\tvfmadd213ps %12, %12, %2\n\tvfmadd213ps %12, %12, %3\n\t"
        "vfmadd213ps %12, %12, %4\n\tvfmadd213ps %12, %12, %5\n\tvfmadd213ps %12, %12, %6\n\tvfmadd213ps %12, %12, %7\n\t"
        "vfmadd213ps %12, %12, %8\n\tvfmadd213ps %12, %12, %9\n\tvfmadd213ps %12, %12, %10\n\tvfmadd213ps %12, %12, %11"
        : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f), "+v"(g), "+v"(h), "+v"(i), "+v"(j), "+v"(k), "+v"(l)
        : "v"(half));
  }
  return static_cast<double>(iterations) * kChains * 2 * 16;
}

}  // namespace winnow
