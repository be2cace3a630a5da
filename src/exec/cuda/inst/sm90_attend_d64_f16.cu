// Head dim 64, f16: {no skip test, skip test} x {drop, means, pairs} x {reference follows sums, maxima}.
#include "exec/cuda/sm90_launch.cuh"

namespace winnow::sm90 {

// clang-format off
//                                                skip   means  safe   pairs
template cudaError_t launch<__half, 64, false, false, false, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__half, 64, false, false, true, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__half, 64, false, true, false, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__half, 64, false, true, true, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__half, 64, true, false, false, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__half, 64, true, false, true, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__half, 64, true, true, false, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__half, 64, true, true, true, false>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__half, 64, false, false, false, true>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__half, 64, false, false, true, true>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__half, 64, true, false, false, true>(const KernelArgs&, int, cudaStream_t);
template cudaError_t launch<__half, 64, true, false, true, true>(const KernelArgs&, int, cudaStream_t);
// clang-format on

}  // namespace winnow::sm90
