// Eight-lane vector vocabulary for AVX2 + FMA. See vec_scalar.h for the meaning of each function.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace winnow::avx2 {

inline constexpr int kLanes = 8;
using V = __m256;

inline __m256i mask_n(int n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)); }
inline V zero() { return _mm256_setzero_ps(); }
inline V set(float x) { return _mm256_set1_ps(x); }
inline V load(const float* p) { return _mm256_loadu_ps(p); }
inline V load_n(const float* p, int n) { return _mm256_maskload_ps(p, mask_n(n)); }
inline void store(float* p, V a) { _mm256_storeu_ps(p, a); }
inline void store_n(float* p, V a, int n) { _mm256_maskstore_ps(p, mask_n(n), a); }
inline V widen_bf16(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
inline V load_bf16(const std::uint16_t* p) { return widen_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline V load_bf16_n(const std::uint16_t* p, int n) {
  alignas(16) std::uint16_t buffer[8] = {};
  for (int i = 0; i < n; ++i) buffer[i] = p[i];
  return load_bf16(buffer);
}
inline V load_f16(const std::uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline __m128i narrow_bf16(V a) {
  const __m256i u = _mm256_castps_si256(a);
  const __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i r = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7FFF))), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
  r = _mm256_blendv_epi8(r, quiet, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
  return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}
inline void store_bf16(std::uint16_t* p, V a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow_bf16(a)); }
inline void store_bf16_n(std::uint16_t* p, V a, int n) {
  alignas(16) std::uint16_t buffer[8];
  store_bf16(buffer, a);
  for (int i = 0; i < n; ++i) p[i] = buffer[i];
}
inline V load_f16_n(const std::uint16_t* p, int n) {
  alignas(16) std::uint16_t buffer[8] = {};
  for (int i = 0; i < n; ++i) buffer[i] = p[i];
  return load_f16(buffer);
}
inline void store_f16(std::uint16_t* p, V a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline void store_f16_n(std::uint16_t* p, V a, int n) {
  alignas(16) std::uint16_t buffer[8];
  store_f16(buffer, a);
  for (int i = 0; i < n; ++i) p[i] = buffer[i];
}
inline V add(V a, V b) { return _mm256_add_ps(a, b); }
inline V sub(V a, V b) { return _mm256_sub_ps(a, b); }
inline V mul(V a, V b) { return _mm256_mul_ps(a, b); }
inline V div(V a, V b) { return _mm256_div_ps(a, b); }
inline V reciprocal_estimate(V a) { return _mm256_rcp_ps(a); }
inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
inline V fused(V a, V b, V c) { return fma(a, b, c); }
inline V max(V a, V b) { return _mm256_max_ps(a, b); }
inline V min(V a, V b) { return _mm256_min_ps(a, b); }
inline V sqrt(V a) { return _mm256_sqrt_ps(a); }
inline float sum(V a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline float max_lane(V a) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
inline V round(V a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline V scale2(V a, V n) {
  const __m256i i = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(i, 1);
  const auto pow2 = [](__m256i e) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23)); };
  return _mm256_mul_ps(_mm256_mul_ps(a, pow2(half)), pow2(_mm256_sub_epi32(i, half)));
}
inline V floor_from(V x) { return _mm256_floor_ps(max(set(-200.0F), x)); }
inline V fraction(V a) { return sub(max(set(-200.0F), a), floor_from(a)); }
inline V scale2_floor(V a, V x) { return scale2(a, floor_from(x)); }
inline bool any_less(V a, V b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ)) != 0; }
inline bool all_less(V a, V b, int n) {
  const int lanes = (1 << n) - 1;
  return (_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ)) & lanes) == lanes;
}

}  // namespace winnow::avx2
