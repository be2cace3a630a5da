// avx512_f32
#include "device/cpu/vec_avx512.h"

#define WINNOW_ISA avx512_f32
namespace winnow::WINNOW_ISA {
using namespace avx512;  // NOLINT(google-build-using-namespace)
}

#include "exec/cpu/attend-inl.h"
#include "exec/cpu/products_f32-inl.h"

namespace winnow {

const CpuKernels* avx512_f32_kernels() { return WINNOW_ISA::kernels_f32<8, 2>(); }

}  // namespace winnow
