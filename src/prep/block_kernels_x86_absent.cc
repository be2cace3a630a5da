// Stands in for the x86 block kernels where they are not built.
#include "prep/block_kernels.h"

namespace winnow {
const BlockKernels* block_kernels_avx512() { return nullptr; }
const BlockKernels* block_kernels_avx2() { return nullptr; }
}  // namespace winnow
