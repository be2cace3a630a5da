// Head dim 64, f16: {no skip test, skip test} x {drop, means} x {reference follows sums, maxima}.
#include "exec/cuda/sm90_launch.cuh"

namespace winnow::sm90 {

template cudaError_t launch<__half, 64, false, false, false>(const AttendArgs&, int, cudaStream_t);
template cudaError_t launch<__half, 64, false, false, true>(const AttendArgs&, int, cudaStream_t);
template cudaError_t launch<__half, 64, false, true, false>(const AttendArgs&, int, cudaStream_t);
template cudaError_t launch<__half, 64, false, true, true>(const AttendArgs&, int, cudaStream_t);
template cudaError_t launch<__half, 64, true, false, false>(const AttendArgs&, int, cudaStream_t);
template cudaError_t launch<__half, 64, true, false, true>(const AttendArgs&, int, cudaStream_t);
template cudaError_t launch<__half, 64, true, true, false>(const AttendArgs&, int, cudaStream_t);
template cudaError_t launch<__half, 64, true, true, true>(const AttendArgs&, int, cudaStream_t);

}  // namespace winnow::sm90
