// The row kernels of ops.h for AVX2.
#include "dit/ops.h"

#include "device/cpu/vec_avx2.h"

#define WINNOW_ISA avx2
namespace winnow::avx2 {
namespace {
using dit::RowKernels;
using dit::RowTable;
// Turns each pair (v0, v1) by the angle whose (cos, sin) is the same pair of `angles`: (v0 cos - v1 sin, v1 cos + v0 sin).
inline V rotate_pairs(V v, V angles) {
  return _mm256_fmaddsub_ps(v, _mm256_moveldup_ps(angles), _mm256_mul_ps(_mm256_permute_ps(v, 0xB1), _mm256_movehdup_ps(angles)));
}
// The nearest bf16, as f32.
inline V round_to_bf16(V a) { return widen_bf16(narrow_bf16(a)); }
#include "dit/ops-inl.h"
constexpr RowKernels kKernels = make_kernels("AVX2");
}  // namespace
}  // namespace winnow::avx2

namespace winnow::dit {
const RowKernels* avx2_kernels() { return &avx2::kKernels; }
}  // namespace winnow::dit
