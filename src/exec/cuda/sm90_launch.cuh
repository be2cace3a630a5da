// Launches one instantiation of the attention kernel. Included by inst/*.cu only; attend_cuda.cu sees the declarations.
#pragma once

#include "exec/cuda/launch.h"
#include "exec/cuda/sm90_attend.cuh"

namespace winnow::sm90 {

template <class T, int kD, bool kSkip, Keys kKeys, Maximum kMaximum, bool kPairs>
cudaError_t launch(const KernelArgs& args, int ctas, cudaStream_t stream) {
  using C = AttendConfig<T, kD, kSkip, kKeys, kMaximum, kPairs>;
  constexpr int kBytes = sizeof(Shared<C>);
  static_assert(kBytes <= 227 * 1024, "more shared memory than a CTA can have on sm_90");
  // Per device and idempotent, so no lock: set on every call, below a microsecond.
  const cudaError_t e = cudaFuncSetAttribute(sm90_attend<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (e != cudaSuccess) return e;
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {C::kCtas, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ctas / C::kCtas * C::kCtas));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, sm90_attend<C>, args);
}

}  // namespace winnow::sm90
