// The row kernels of ops.h for AVX2.
#include "dit/ops.h"

#include "device/cpu/vec_avx2.h"

#define WINNOW_ISA avx2
namespace winnow::avx2 {
namespace {
using dit::RowKernels;
using dit::RowTable;
// Elements 2p and 2p + 1: exchanged, both the first, both the second; and -1, 1, -1, 1 ...
inline V swap_pairs(V a) { return _mm256_permute_ps(a, 0xB1); }
inline V even_of_pairs(V a) { return _mm256_moveldup_ps(a); }
inline V odd_of_pairs(V a) { return _mm256_movehdup_ps(a); }
inline V alternating_sign() { return _mm256_setr_ps(-1.0F, 1.0F, -1.0F, 1.0F, -1.0F, 1.0F, -1.0F, 1.0F); }
// The nearest bf16, as f32.
inline V round_to_bf16(V a) { return widen_bf16(narrow_bf16(a)); }
#include "dit/ops-inl.h"
constexpr RowKernels kKernels = make_kernels("AVX2");
}  // namespace
}  // namespace winnow::avx2

namespace winnow::dit {
const RowKernels* avx2_kernels() { return &avx2::kKernels; }
}  // namespace winnow::dit
