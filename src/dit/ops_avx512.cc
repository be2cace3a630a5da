// The row kernels of ops.h for AVX-512.
#include "dit/ops.h"

#include "device/cpu/vec_avx512.h"

#define WINNOW_ISA avx512
namespace winnow::avx512 {
namespace {
using dit::RowKernels;
using dit::RowTable;
// Element 2p and 2p+1 exchanged.
inline V swap_pairs(V a) { return _mm512_permute_ps(a, 0xB1); }
// The nearest bf16, as f32.
inline V round_to_bf16(V a) { return widen_bf16(narrow_bf16(a)); }
#include "dit/ops-inl.h"
constexpr RowKernels kKernels = make_kernels("AVX-512");
}  // namespace
}  // namespace winnow::avx512

namespace winnow::dit {
const RowKernels* avx512_kernels() { return &avx512::kKernels; }
}  // namespace winnow::dit
