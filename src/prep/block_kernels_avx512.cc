// Block statistics for avx512.
#include "device/cpu/vec_avx512.h"

namespace winnow {
namespace {
namespace vec = avx512;
}
}  // namespace winnow
#define WINNOW_BLOCK_ISA "avx512"
#include "prep/block_kernels-inl.h"

namespace winnow {
const BlockKernels* block_kernels_avx512() { return &kKernels; }
}  // namespace winnow
