// Head dim 64.
#include "exec/cuda/sm80_launch.cuh"

namespace winnow::sm80 {

template cudaError_t launch<__nv_bfloat16, 64>(const KernelArgs&, unsigned, cudaStream_t);
template cudaError_t launch<__half, 64>(const KernelArgs&, unsigned, cudaStream_t);

}  // namespace winnow::sm80
