#include "prep/block_stats.h"

#include <algorithm>
#include <cmath>

#include "core/threads.h"
#include "prep/block_kernels.h"
#include "winnow/threads.h"
#include "winnow/workspace.h"

namespace winnow {

namespace {

// Where the mean of a block goes: first + (g % cells) * cell + (g / cells) * tile, dimensions `d` elements apart.
struct Layout {
  std::int64_t head = 0;  // elements from one (batch, head) to the next
  std::int64_t cells = 1;
  std::int64_t cell = 0;
  std::int64_t tile = 0;
  std::int64_t d = 0;
};

}  // namespace

float* block_means(const TensorView& x, std::int64_t block, std::span<const std::int64_t> lengths, MeanLayout layout, Workspace& ws,
                   std::int64_t cells) {
  const std::int64_t B = x.size(0);
  const std::int64_t S = x.size(1);
  const std::int64_t H = x.size(2);
  const std::int64_t D = x.size(3);
  const std::int64_t blocks = (S + block - 1) / block;
  const bool columns = layout == MeanLayout::columns;
  const std::int64_t tile_ld = padded((blocks + cells - 1) / cells);
  const std::int64_t ld = columns ? cells * tile_ld : blocks;
  const Layout to = columns ? Layout{D * ld, cells, tile_ld, 1, ld} : Layout{D * ld, 1, 0, D, 1};
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
    float* out = means + (b * H + h) * to.head + g % to.cells * to.cell + g / to.cells * to.tile;
    for (std::int64_t d = 0; d < D; ++d) out[d * to.d] = row[d] / count;
  });
  for (std::int64_t r = 0; columns && r < B * H * D * cells; ++r) {
    const std::int64_t used = (blocks - r % cells + cells - 1) / cells;
    std::fill(means + r * tile_ld + used, means + (r + 1) * tile_ld, 0.0F);
  }
  return means;
}

float* self_similarity(const TensorView& x, std::int64_t block, std::span<const std::int64_t> lengths, Smoothing smoothing, Workspace& ws) {
  const std::int64_t H = x.size(2);
  const std::int64_t D = x.size(3);
  const std::int64_t blocks = (x.size(1) + block - 1) / block;
  const auto valid = [&](std::int64_t b) { return lengths.empty() ? x.size(1) : lengths[static_cast<std::size_t>(b)]; };
  const auto* data = static_cast<const std::byte*>(x.data);
  const auto at = [&](std::int64_t b, std::int64_t s, std::int64_t h) {
    return data + (b * x.stride(0) + s * x.stride(1) + h * x.stride(2)) * static_cast<std::int64_t>(dtype_bytes(x.dtype));
  };
  const BlockKernels& kernels = block_kernels();
  const std::int64_t ld = padded(D);
  auto* similarity = ws.allocate<float>(static_cast<std::size_t>(x.size(0) * H * blocks));
  const Workspace::Scope scratch(ws);
  auto* shifts = ws.allocate<float>(static_cast<std::size_t>(x.size(0) * H * ld));
  std::fill_n(shifts, x.size(0) * H * ld, 0.0F);
  if (smoothing == Smoothing::mean) {
    parallel_for(x.size(0) * H, [&](std::int64_t i, int) {
      const std::int64_t n = valid(i / H);
      kernels.sum_rows(at(i / H, 0, i % H), x.dtype, x.stride(1), n, D, shifts + i * ld);
      for (std::int64_t d = 0; d < D && n > 0; ++d) {
        const float mean = shifts[i * ld + d] / static_cast<float>(n);
        shifts[i * ld + d] = std::isfinite(mean) ? mean : 0.0F;  // one bad token does not decide about all blocks
      }
    });
  }
  auto* rows = ws.allocate<float>(static_cast<std::size_t>(num_threads() * 2 * ld));
  parallel_for(x.size(0) * blocks * H, [&](std::int64_t task, int worker) {  // heads fastest, as in block_means
    const std::int64_t h = task % H;
    const std::int64_t g = task / H % blocks;
    const std::int64_t b = task / H / blocks;
    const std::int64_t tokens = std::clamp<std::int64_t>(valid(b) - g * block, 0, block);
    float* row = rows + worker * 2 * ld;
    float* sum = row + ld;
    kernels.sum_directions(at(b, g * block, h), x.dtype, x.stride(1), tokens, D, shifts + (b * H + h) * ld, row, sum);
    double square = 0.0;
    for (std::int64_t d = 0; d < D; ++d) square += static_cast<double>(sum[d]) * static_cast<double>(sum[d]);
    const auto n = static_cast<double>(std::max<std::int64_t>(tokens, 1));
    similarity[(b * H + h) * blocks + g] = static_cast<float>(square / (n * n));
  });
  return similarity;
}

}  // namespace winnow
