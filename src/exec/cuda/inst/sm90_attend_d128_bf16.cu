// Head dim 128, bf16. The arguments after the head dim: skip test, means, when the maximum is found, pairs of CTAs.
#include "exec/cuda/sm90_launch.cuh"

namespace winnow::sm90 {

template cudaError_t launch<__nv_bfloat16, 128, false, false, Maximum::never, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, false, false, Maximum::beside, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, false, false, Maximum::before, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, false, true, Maximum::never, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, false, true, Maximum::beside, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, false, true, Maximum::before, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, false, false, Maximum::never, true>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, false, false, Maximum::beside, true>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, false, false, Maximum::before, true>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, true, false, Maximum::beside, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, true, false, Maximum::before, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, true, true, Maximum::beside, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, true, true, Maximum::before, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, true, false, Maximum::beside, true>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, true, false, Maximum::before, true>(const KernelArgs&, int, cudaStream_t);

}  // namespace winnow::sm90
