// avx2_f32
#include "device/cpu/vec_avx2.h"

#define WINNOW_ISA avx2_f32
namespace winnow::WINNOW_ISA {
using namespace avx2;  // NOLINT(google-build-using-namespace)
}

#include "exec/cpu/attend-inl.h"
#include "exec/cpu/products_f32-inl.h"

namespace winnow {

const CpuKernels* avx2_f32_kernels() { return WINNOW_ISA::kernels_f32<4, 2>(); }

}  // namespace winnow
