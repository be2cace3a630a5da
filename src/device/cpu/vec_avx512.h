// Sixteen-lane vector vocabulary for AVX-512 (F, BW, DQ, VL). See vec_scalar.h for the meaning of each function.
#pragma once

#include <immintrin.h>

#include <cstdint>

// static: the AVX-512 and the AMX translation units compile these with different flags.
namespace winnow::avx512 {

inline constexpr int kLanes = 16;
using V = __m512;

static inline __mmask16 mask_n(int n) { return static_cast<__mmask16>((1U << n) - 1U); }
static inline V zero() { return _mm512_setzero_ps(); }
static inline V set(float x) { return _mm512_set1_ps(x); }
static inline V load(const float* p) { return _mm512_loadu_ps(p); }
static inline V load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(mask_n(n), p); }
static inline void store(float* p, V a) { _mm512_storeu_ps(p, a); }
static inline void store_n(float* p, V a, int n) { _mm512_mask_storeu_ps(p, mask_n(n), a); }
// One shuffle puts every element into the high half of its lane: half the operations of widening and shifting.
static inline V widen_bf16(__m256i h) {
  const __m512i places = _mm512_slli_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 16);
  return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xAAAAAAAAU, places, _mm512_castsi256_si512(h)));
}
static inline V load_bf16(const std::uint16_t* p) { return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
static inline V load_bf16_n(const std::uint16_t* p, int n) { return widen_bf16(_mm256_maskz_loadu_epi16(mask_n(n), p)); }
#if defined(__AVX512BF16__)
// One instruction instead of seven; it takes subnormals for zero.
static inline __m256i narrow_bf16(V a) { return (__m256i)_mm512_cvtneps_pbh(a); }
#else
static inline __m256i narrow_bf16(V a) {
  const __m512i u = _mm512_castps_si512(a);
  const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(lsb, _mm512_set1_epi32(0x7FFF))), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
  r = _mm512_mask_or_epi32(r, nan, _mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
  return _mm512_cvtepi32_epi16(r);
}
#endif
static inline void store_bf16(std::uint16_t* p, V a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(a)); }
static inline void store_bf16_n(std::uint16_t* p, V a, int n) { _mm256_mask_storeu_epi16(p, mask_n(n), narrow_bf16(a)); }
static inline V load_f16(const std::uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
static inline V load_f16_n(const std::uint16_t* p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask_n(n), p)); }
static inline __m256i narrow_f16(V a) { return _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline void store_f16(std::uint16_t* p, V a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_f16(a)); }
static inline void store_f16_n(std::uint16_t* p, V a, int n) { _mm256_mask_storeu_epi16(p, mask_n(n), narrow_f16(a)); }
static inline V add(V a, V b) { return _mm512_add_ps(a, b); }
static inline V sub(V a, V b) { return _mm512_sub_ps(a, b); }
static inline V mul(V a, V b) { return _mm512_mul_ps(a, b); }
static inline V div(V a, V b) { return _mm512_div_ps(a, b); }
static inline V reciprocal_estimate(V a) { return _mm512_rcp14_ps(a); }
static inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
static inline V fused(V a, V b, V c) { return fma(a, b, c); }
static inline V max(V a, V b) { return _mm512_max_ps(a, b); }
static inline V min(V a, V b) { return _mm512_min_ps(a, b); }
static inline V sqrt(V a) { return _mm512_sqrt_ps(a); }
static inline float sum(V a) { return _mm512_reduce_add_ps(a); }
static inline float max_lane(V a) { return _mm512_reduce_max_ps(a); }
static inline V round(V a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline V scale2(V a, V n) { return _mm512_scalef_ps(a, n); }
static inline V fraction(V a) { return _mm512_reduce_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
static inline V scale2_floor(V a, V x) { return _mm512_scalef_ps(a, x); }
static inline bool any_less(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ) != 0; }
static inline bool all_less(V a, V b, int n) { return _mm512_mask_cmp_ps_mask(mask_n(n), a, b, _CMP_LT_OQ) == mask_n(n); }

}  // namespace winnow::avx512
