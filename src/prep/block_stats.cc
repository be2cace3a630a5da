#include "prep/block_stats.h"

#include <algorithm>

#include "core/threads.h"
#include "prep/block_kernels.h"
#include "winnow/threads.h"
#include "winnow/workspace.h"

namespace winnow {

namespace {

struct Layout {
  std::int64_t head = 0;   // elements from one (batch, head) to the next
  std::int64_t block = 0;  // from one block to the next
  std::int64_t d = 0;      // from one dimension to the next
};

}  // namespace

float* block_means(const TensorView& x, std::int64_t block, std::span<const std::int64_t> lengths, MeanLayout layout, Workspace& ws) {
  const std::int64_t B = x.size(0);
  const std::int64_t S = x.size(1);
  const std::int64_t H = x.size(2);
  const std::int64_t D = x.size(3);
  const std::int64_t blocks = (S + block - 1) / block;
  const bool columns = layout == MeanLayout::columns;
  const std::int64_t ld = columns ? padded(blocks) : blocks;
  const Layout to = columns ? Layout{D * ld, 1, ld} : Layout{D * ld, D, 1};
  auto* means = ws.allocate<float>(static_cast<std::size_t>(B * H * D * ld));
  const Workspace::Scope scratch(ws);
  auto* rows = ws.allocate<float>(static_cast<std::size_t>(num_threads() * D));
  const BlockKernels& kernels = block_kernels();
  const auto* data = static_cast<const std::byte*>(x.data);
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(x.dtype));

  // Heads vary fastest: neighbouring tasks read neighbouring memory of [B,S,H,D].
  parallel_for(B * blocks * H, [&](std::int64_t task, int worker) {
    const std::int64_t h = task % H;
    const std::int64_t g = task / H % blocks;
    const std::int64_t b = task / H / blocks;
    const std::int64_t length = lengths.empty() ? S : lengths[static_cast<std::size_t>(b)];
    const std::int64_t tokens = std::clamp<std::int64_t>(length - g * block, 0, block);
    const std::byte* from = data + (b * x.stride(0) + g * block * x.stride(1) + h * x.stride(2)) * bytes;
    float* row = rows + worker * D;
    kernels.sum_rows(from, x.dtype, x.stride(1), tokens, D, row);
    const auto count = static_cast<float>(std::max<std::int64_t>(tokens, 1));
    float* out = means + (b * H + h) * to.head + g * to.block;
    for (std::int64_t d = 0; d < D; ++d) out[d * to.d] = row[d] / count;
  });
  if (columns) {
    for (std::int64_t r = 0; r < B * H * D; ++r) std::fill(means + r * ld + blocks, means + (r + 1) * ld, 0.0F);
  }
  return means;
}

}  // namespace winnow
