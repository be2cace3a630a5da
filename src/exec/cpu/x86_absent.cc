// Stands in for the x86 kernels in builds without them.
#include "exec/cpu/peak_loops.h"
#include "exec/cpu/row_task.h"

namespace winnow {

const CpuKernels* amx_bf16_kernels() { return nullptr; }
const CpuKernels* avx512_f32_kernels() { return nullptr; }
const CpuKernels* avx2_f32_kernels() { return nullptr; }

double amx_bf16_loop(std::int64_t) { return 0.0; }
double avx512_f32_loop(std::int64_t) { return 0.0; }

}  // namespace winnow
