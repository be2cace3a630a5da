// One-lane vector vocabulary: the same functions as vec_avx2.h and vec_avx512.h, in plain C++ on any machine.
// The vocabulary: V = kLanes floats. Loads and stores take any alignment; `n` forms touch only the first n < kLanes lanes
// (others load as 0). bf16 forms widen on load and round to nearest even on store.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/numeric.h"

namespace winnow::scalar {

inline constexpr int kLanes = 1;
struct V {
  float x;
};

inline V zero() { return {0.0F}; }
inline V set(float x) { return {x}; }
inline V load(const float* p) { return {*p}; }
inline V load_n(const float* p, int n) { return {n > 0 ? *p : 0.0F}; }
inline void store(float* p, V a) { *p = a.x; }
inline void store_n(float* p, V a, int n) {
  if (n > 0) *p = a.x;
}
inline V load_bf16(const std::uint16_t* p) {
  const std::uint32_t bits = static_cast<std::uint32_t>(*p) << 16;
  V r;
  std::memcpy(&r.x, &bits, 4);
  return r;
}
inline V load_bf16_n(const std::uint16_t* p, int n) { return n > 0 ? load_bf16(p) : zero(); }
inline V load_f16(const std::uint16_t* p) { return {to_f32(f16{*p})}; }
inline void store_bf16(std::uint16_t* p, V a) {
  std::uint32_t u;
  std::memcpy(&u, &a.x, 4);
  *p = (u & 0x7FFFFFFFU) > 0x7F800000U ? static_cast<std::uint16_t>((u >> 16) | 0x40U)
                                       : static_cast<std::uint16_t>((u + 0x7FFFU + ((u >> 16) & 1U)) >> 16);
}
inline void store_bf16_n(std::uint16_t* p, V a, int n) {
  if (n > 0) store_bf16(p, a);
}
inline V load_f16_n(const std::uint16_t* p, int n) { return n > 0 ? load_f16(p) : zero(); }
inline void store_f16(std::uint16_t* p, V a) { *p = to_f16(a.x).bits; }
inline void store_f16_n(std::uint16_t* p, V a, int n) {
  if (n > 0) store_f16(p, a);
}
inline V add(V a, V b) { return {a.x + b.x}; }
inline V sub(V a, V b) { return {a.x - b.x}; }
inline V mul(V a, V b) { return {a.x * b.x}; }
inline V div(V a, V b) { return {a.x / b.x}; }
inline V reciprocal_estimate(V a) { return {1.0F / a.x}; }                 // within 2^-11 of 1 / a; 2^-126 < |a| <= 2^126
inline V fma(V a, V b, V c) { return {a.x * b.x + c.x}; }                  // a*b + c; fused where the ISA has it
inline V fused(V a, V b, V c) { return {__builtin_fmaf(a.x, b.x, c.x)}; }  // rounded once on every ISA; a slow call without the instruction
inline V max(V a, V b) { return {a.x > b.x ? a.x : b.x}; }                 // b if either is NaN
inline V min(V a, V b) { return {a.x < b.x ? a.x : b.x}; }
inline V sqrt(V a) { return {__builtin_sqrtf(a.x)}; }
inline float sum(V a) { return a.x; }
inline float max_lane(V a) { return a.x; }
// round(x) to the nearest integer, ties to even; |x| < 2^22
inline V round(V a) { return {a.x + 12582912.0F - 12582912.0F}; }
// a * 2^n for integral n in [-252, 254]; underflow is gradual, overflow gives infinity
inline V scale2(V a, V n) {
  const int i = static_cast<int>(n.x);
  const int half = i / 2;
  const auto pow2 = [](int e) {
    const std::uint32_t bits = static_cast<std::uint32_t>(e + 127) << 23;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
  };
  return {a.x * pow2(half) * pow2(i - half)};
}
// exp2 comes in two parts, 2^x = 2^fraction(x) * 2^floor(x):
// fraction(x) = x - floor(x), in [0,1]; 0 or NaN where x is infinite
inline V floor_from(V a) {
  const float x = a.x < -200.0F ? -200.0F : a.x;
  const V n = round({x});
  return {n.x > x ? n.x - 1.0F : n.x};
}
inline V fraction(V a) { return {(a.x < -200.0F ? -200.0F : a.x) - floor_from(a).x}; }
// a * 2^floor(x) for a in [1,2] and x < 127; 0 for x < -152, also for -inf; NaN if a is
inline V scale2_floor(V a, V x) { return a.x == a.x ? scale2(a, floor_from(x)) : a; }
inline bool any_less(V a, V b) { return a.x < b.x; }                  // in any lane; false where either is NaN
inline bool all_less(V a, V b, int n) { return n < 1 || a.x < b.x; }  // in all of the first n lanes

}  // namespace winnow::scalar
