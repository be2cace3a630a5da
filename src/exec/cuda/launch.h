// The instantiations of the attention kernel. The files in inst/ are the list.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "exec/cuda/kernel_args.h"

namespace winnow::sm90 {

// T: __nv_bfloat16 or __half; kD: 64 or 128; see AttendConfig. `ctas`: at most one per multiprocessor.
template <class T, int kD, bool kSkip, Keys kKeys, Maximum kMaximum, bool kPairs>
cudaError_t launch(const KernelArgs& args, int ctas, cudaStream_t stream);

}  // namespace winnow::sm90
