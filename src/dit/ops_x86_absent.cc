// Stands in for the x86 row kernels where they are not built.
#include "dit/ops.h"

namespace winnow::dit {
const RowKernels* avx512_bf16_kernels() { return nullptr; }
const RowKernels* avx512_kernels() { return nullptr; }
const RowKernels* avx2_kernels() { return nullptr; }
}  // namespace winnow::dit
