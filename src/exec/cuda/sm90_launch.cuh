// Launches one instantiation of the attention kernel. Included by inst/*.cu only; attend_cuda.cu sees the declarations.
#pragma once

#include "exec/cuda/launch.h"
#include "exec/cuda/sm90_attend.cuh"

namespace winnow::sm90 {

template <class T, int kD, bool kSkip, bool kMeans, bool kSafe>
cudaError_t launch(const AttendArgs& args, int ctas, cudaStream_t stream) {
  using C = AttendConfig<T, kD, kSkip, kMeans, kSafe>;
  constexpr int kBytes = sizeof(Shared<C>) + 1024;  // dynamic shared memory is 16-byte aligned, the swizzle needs 1024
  static_assert(kBytes <= 227 * 1024, "more shared memory than a CTA can have on sm_90");
  // Per device and idempotent, so no lock: set on every call, below a microsecond.
  const cudaError_t e = cudaFuncSetAttribute(sm90_attend<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (e != cudaSuccess) return e;
  sm90_attend<C><<<ctas, kThreads, kBytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace winnow::sm90
