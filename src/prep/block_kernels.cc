#include "prep/block_kernels.h"

#include "device/cpu/features.h"

namespace winnow {

std::vector<const BlockKernels*> available_block_kernels() {
  std::vector<const BlockKernels*> found;
  const CpuFeatures& cpu = cpu_features();
  if (cpu.avx512 && block_kernels_avx512() != nullptr) found.push_back(block_kernels_avx512());
  if (cpu.avx2 && block_kernels_avx2() != nullptr) found.push_back(block_kernels_avx2());
  found.push_back(block_kernels_scalar());
  return found;
}

const BlockKernels& block_kernels() {
  static const BlockKernels& best = *available_block_kernels().front();
  return best;
}

}  // namespace winnow
