// amx_bf16
#include "device/cpu/vec_avx512.h"

#define WINNOW_ISA amx_bf16
namespace winnow::WINNOW_ISA {
using namespace avx512;  // NOLINT(google-build-using-namespace)
}

#include "exec/cpu/attend-inl.h"
#include "exec/cpu/products_amx-inl.h"

namespace winnow {

const CpuKernels* amx_bf16_kernels() {
  using Products = WINNOW_ISA::ProductsAmx;
  static constexpr CpuKernels kKernels = {Products::kBlock, Products::unit_bytes_of,  Products::scratch_bytes,          Products::pack_k,
                                          Products::pack_v, WINNOW_ISA::average_rows, WINNOW_ISA::attend_task<Products>};
  return &kKernels;
}

}  // namespace winnow
