// Block statistics for scalar.
#include "device/cpu/vec_scalar.h"

namespace winnow {
namespace {
namespace vec = scalar;
}
}  // namespace winnow
#define WINNOW_BLOCK_ISA "scalar"
#include "prep/block_kernels-inl.h"

namespace winnow {
const BlockKernels* block_kernels_scalar() { return &kKernels; }
}  // namespace winnow
