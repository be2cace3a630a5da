// The row kernels of ops.h for AVX2.
#include "dit/ops.h"

#include "device/cpu/vec_avx2.h"

#define WINNOW_ISA avx2
namespace winnow::avx2 {
namespace {
using dit::RowKernels;
using dit::RowTable;
// Element 2p and 2p+1 exchanged.
inline V swap_pairs(V a) { return _mm256_permute_ps(a, 0xB1); }
// The nearest bf16, as f32.
inline V round_to_bf16(V a) { return widen_bf16(narrow_bf16(a)); }
#include "dit/ops-inl.h"
constexpr RowKernels kKernels = make_kernels("AVX2");
}  // namespace
}  // namespace winnow::avx2

namespace winnow::dit {
const RowKernels* avx2_kernels() { return &avx2::kKernels; }
}  // namespace winnow::dit
