// The row kernels of ops.h for AVX-512 with its conversion to bf16.
#include "dit/ops.h"

#include "dit/ops_avx512-inl.h"
constexpr RowKernels kKernels = make_kernels("AVX-512-BF16");
}  // namespace
}  // namespace winnow::avx512

namespace winnow::dit {
const RowKernels* avx512_bf16_kernels() { return &avx512::kKernels; }
}  // namespace winnow::dit
