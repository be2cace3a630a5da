// What the sm_80 attention kernel is launched with, and its instantiations: the files in inst/ are the list.
#pragma once

#include <cuda_runtime_api.h>

#include "exec/cuda/attend_cuda.h"

namespace winnow::sm80 {

struct KernelArgs {
  cuda::StridedTensor q, k, v, out, k_mean, v_mean;  // as in cuda::AttendCall
  const std::int64_t* offsets;
  const std::int32_t* tiles;
  const std::int32_t* order;
  cuda::LayoutTables layout;
  const std::uint32_t* mean_bits;
  const std::int32_t* key_lengths;
  cuda::StridedStats lse, inv_l;
  unsigned long long* granules;
  int H, Hk, Sq, Sk, Gq, mean_words, list_period;
  float scale_log2;  // scale * log2(e), > 0
  float skip_below;  // a tile is skipped when (its maximum - running maximum) < this, in raw q.k units; -inf: never
};

// T: __nv_bfloat16 or __half; kD: 64 or 128. One CTA per row of the plan.
template <class T, int kD>
cudaError_t launch(const KernelArgs& args, unsigned rows, cudaStream_t stream);

}  // namespace winnow::sm80
