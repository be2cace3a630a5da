// Block statistics for avx2.
#include "device/cpu/vec_avx2.h"

namespace winnow {
namespace {
namespace vec = avx2;
}
}  // namespace winnow
#define WINNOW_BLOCK_ISA "avx2"
#include "prep/block_kernels-inl.h"

namespace winnow {
const BlockKernels* block_kernels_avx2() { return &kKernels; }
}  // namespace winnow
