// The row kernels for AVX-512, included by the two translation units that differ in compiler flags: with and without the
// instruction that converts to bf16. Leaves the anonymous namespace open for the table of kernels.
#include "device/cpu/vec_avx512.h"

#define WINNOW_ISA avx512
namespace winnow::avx512 {
namespace {
using dit::RowKernels;
using dit::RowTable;
// Turns each pair (v0, v1) by the angle whose (cos, sin) is the same pair of `angles`: (v0 cos - v1 sin, v1 cos + v0 sin).
inline V rotate_pairs(V v, V angles) {
  return _mm512_fmaddsub_ps(v, _mm512_moveldup_ps(angles), _mm512_mul_ps(_mm512_permute_ps(v, 0xB1), _mm512_movehdup_ps(angles)));
}
// The nearest bf16, as f32.
inline V round_to_bf16(V a) { return widen_bf16(narrow_bf16(a)); }
#include "dit/ops-inl.h"
