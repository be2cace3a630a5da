// Head dim 128.
#include "exec/cuda/sm80_launch.cuh"

namespace winnow::sm80 {

template cudaError_t launch<__nv_bfloat16, 128>(const KernelArgs&, unsigned, cudaStream_t);
template cudaError_t launch<__half, 128>(const KernelArgs&, unsigned, cudaStream_t);

}  // namespace winnow::sm80
