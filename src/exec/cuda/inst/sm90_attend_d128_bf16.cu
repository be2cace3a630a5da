// Head dim 128, bf16. The arguments after the head dim: skip test, keys, when the maximum is found, pairs of CTAs.
#include "exec/cuda/sm90_launch.cuh"

namespace winnow::sm90 {

template cudaError_t launch<__nv_bfloat16, 128, false, Keys::listed, Maximum::never, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, false, Keys::listed, Maximum::beside, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, false, Keys::listed, Maximum::before, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, false, Keys::listed, Maximum::never, true>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, false, Keys::listed, Maximum::beside, true>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, false, Keys::means, Maximum::never, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, false, Keys::means, Maximum::beside, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, false, Keys::means, Maximum::before, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, false, Keys::layout, Maximum::never, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, false, Keys::layout, Maximum::beside, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, false, Keys::layout, Maximum::before, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, true, Keys::listed, Maximum::beside, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, true, Keys::listed, Maximum::before, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, true, Keys::listed, Maximum::beside, true>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, true, Keys::means, Maximum::beside, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, true, Keys::means, Maximum::before, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, true, Keys::layout, Maximum::beside, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, true, Keys::layout, Maximum::before, false>(const KernelArgs&, int, cudaStream_t);

}  // namespace winnow::sm90
