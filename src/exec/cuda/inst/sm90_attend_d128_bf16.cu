// Head dim 128, bf16: {no skip test, skip test} x {drop, means} x {reference follows sums, maxima}.
#include "exec/cuda/sm90_launch.cuh"

namespace winnow::sm90 {

template cudaError_t launch<__nv_bfloat16, 128, false, false, false>(const AttendArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, false, false, true>(const AttendArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, false, true, false>(const AttendArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, false, true, true>(const AttendArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, true, false, false>(const AttendArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, true, false, true>(const AttendArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, true, true, false>(const AttendArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 128, true, true, true>(const AttendArgs&, int, cudaStream_t);

}  // namespace winnow::sm90
