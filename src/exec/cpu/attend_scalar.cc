// scalar_f32: any machine. Sixteen vectors of one lane, which compilers turn into what the machine has.
#include "device/cpu/vec_scalar.h"

#define WINNOW_ISA scalar_f32
namespace winnow::WINNOW_ISA {
using namespace scalar;  // NOLINT(google-build-using-namespace)
}

#include "exec/cpu/attend-inl.h"
#include "exec/cpu/products_f32-inl.h"

namespace winnow {

const CpuKernels* scalar_f32_kernels() { return WINNOW_ISA::kernels_f32<4, 16>(); }

}  // namespace winnow
