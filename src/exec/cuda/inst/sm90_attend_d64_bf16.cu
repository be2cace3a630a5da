// Head dim 64, bf16: {no skip test, skip test} x {drop, means}.
#include "exec/cuda/sm90_launch.cuh"

namespace winnow::sm90 {

template cudaError_t launch<__nv_bfloat16, 64, false, false>(const AttendArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 64, false, true>(const AttendArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 64, true, false>(const AttendArgs&, int, cudaStream_t);
template cudaError_t launch<__nv_bfloat16, 64, true, true>(const AttendArgs&, int, cudaStream_t);

}  // namespace winnow::sm90
