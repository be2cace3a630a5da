// Launches one instantiation of the sm_80 attention kernel. Included by inst/sm80_*.cu only.
#pragma once

#include "exec/cuda/sm80_attend.cuh"

namespace winnow::sm80 {

template <class T, int kD>
cudaError_t launch(const KernelArgs& args, unsigned rows, cudaStream_t stream) {
  constexpr int kBytes = (Shape<kD>::kRows + kStages * 2 * kTileK) * kD * 2;
  static_assert(kBytes <= 99 * 1024, "more shared memory than a CTA can have on sm_86, sm_89 and sm_120");
  // Per device and idempotent, so no lock: set on every call, below a microsecond.
  const cudaError_t e = cudaFuncSetAttribute(sm80_attend<T, kD>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (e != cudaSuccess) return e;
  sm80_attend<T, kD><<<rows * Shape<kD>::kSplit, Shape<kD>::kThreads, kBytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace winnow::sm80
