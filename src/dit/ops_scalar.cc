// The row kernels of ops.h for any processor.
#include "dit/ops.h"

#include "device/cpu/vec_scalar.h"

#define WINNOW_ISA scalar
namespace winnow::scalar {
namespace {
using dit::RowKernels;
using dit::RowTable;
// The nearest bf16, as f32.
inline V round_to_bf16(V a) {
  std::uint16_t bits;
  store_bf16(&bits, a);
  return load_bf16(&bits);
}
#include "dit/ops-inl.h"
constexpr RowKernels kKernels = make_kernels("scalar");
}  // namespace
}  // namespace winnow::scalar

namespace winnow::dit {
const RowKernels& scalar_kernels() { return scalar::kKernels; }
}  // namespace winnow::dit
