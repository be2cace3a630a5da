#include "prep/block_stats.h"

#include <algorithm>
#include <cmath>

#include "core/threads.h"
#include "prep/block_kernels.h"
#include "winnow/threads.h"
#include "winnow/workspace.h"

namespace winnow {

namespace {

// The tokens of one block: tokens[0..count), or first, first + 1, ... if `tokens` is null.
struct Block {
  std::int64_t first;
  std::int64_t count;
  const std::int32_t* tokens;
};
Block block_of(const Blocks& blocks, std::int64_t S, std::int64_t b, std::int64_t g) {
  const std::int64_t size = blocks.tile / blocks.cells;
  const TokenLayout* layout = blocks.layout;
  if (layout == nullptr) {
    const std::int64_t length = blocks.lengths.empty() ? S : blocks.lengths[static_cast<std::size_t>(b)];
    const std::int64_t begin = g * size;
    const std::int64_t end = std::clamp(length, begin, begin + size);
    const std::int64_t from = blocks.widen && end > begin ? std::max<std::int64_t>(end - size, 0) : begin;
    return {from, end - from, nullptr};
  }
  const std::int64_t tile = g / blocks.cells;
  std::int64_t begin = layout->begin(tile) + g % blocks.cells * size;
  const std::int64_t end = std::clamp(layout->begin(tile + 1), begin, begin + size);
  if (end == begin) return {0, 0, nullptr};
  if (blocks.widen) begin = std::max(end - size, layout->begin(layout->document_tiles(layout->document(tile)).begin));
  return {0, end - begin, layout->tokens() + begin};
}

// All valid tokens of a document.
Block document_of(const Blocks& blocks, std::int64_t S, std::int64_t b, std::int64_t document) {
  if (blocks.layout == nullptr) return {0, blocks.lengths.empty() ? S : blocks.lengths[static_cast<std::size_t>(b)], nullptr};
  const TileRange tiles = blocks.layout->document_tiles(document);
  const std::int64_t begin = blocks.layout->begin(tiles.begin);
  return {0, blocks.layout->begin(tiles.end) - begin, blocks.layout->tokens() + begin};
}

std::int64_t tiles_of(const Blocks& blocks, std::int64_t S) {
  return blocks.layout != nullptr ? blocks.layout->tiles() : (S + blocks.tile - 1) / blocks.tile;
}

}  // namespace

Blocks query_blocks(const PlanGeometry& geometry, std::int64_t cells) {
  return {geometry.tile_q, cells, false, {}, geometry.query_layout.get()};
}
Blocks key_blocks(const PlanGeometry& geometry, std::int64_t cells) {
  return {geometry.tile_k, cells, false, geometry.key_lengths, geometry.key_layout.get()};
}

float* block_means(const TensorView& x, const Blocks& blocks, MeanLayout layout, Workspace& ws) {
  const std::int64_t B = x.size(0);
  const std::int64_t S = x.size(1);
  const std::int64_t H = x.size(2);
  const std::int64_t D = x.size(3);
  const std::int64_t tiles = tiles_of(blocks, S);
  const bool panels = layout == MeanLayout::panels;
  const std::int64_t ld = panels ? padded(tiles) : tiles;
  const std::int64_t per_head = blocks.cells * ld * D;
  auto* means = ws.allocate<float>(static_cast<std::size_t>(B * H * per_head));
  const Workspace::Scope scratch(ws);
  auto* rows = ws.allocate<float>(static_cast<std::size_t>(num_threads() * D));
  const BlockKernels& kernels = block_kernels();
  const auto* data = static_cast<const std::byte*>(x.data);
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(x.dtype));

  // Heads vary fastest: neighbouring tasks read neighbouring memory of [B,S,H,D]. A task's tiles fill whole cache lines of a panel.
  constexpr std::int64_t kTiles = 16;
  const std::int64_t groups = (tiles + kTiles - 1) / kTiles;
  parallel_for(B * groups * H, [&](std::int64_t task, int worker) {
    const std::int64_t h = task % H;
    const std::int64_t first = task / H % groups * kTiles;
    const std::int64_t b = task / H / groups;
    float* row = rows + worker * D;
    for (std::int64_t g = first * blocks.cells; g < std::min(first + kTiles, tiles) * blocks.cells; ++g) {
      const Block block = block_of(blocks, S, b, g);
      const std::byte* from = data + (b * x.stride(0) + block.first * x.stride(1) + h * x.stride(2)) * bytes;
      kernels.sum_rows(from, x.dtype, x.stride(1), block.tokens, block.count, D, row);
      const auto count = static_cast<float>(std::max<std::int64_t>(block.count, 1));
      const std::int64_t column = g % blocks.cells * ld + g / blocks.cells;
      float* out = means + (b * H + h) * per_head + (panels ? in_panels(column, 0, D) : g * D);
      const std::int64_t step = panels ? kScorePad : 1;
      for (std::int64_t d = 0; d < D; ++d) out[d * step] = row[d] / count;
    }
  });
  for (std::int64_t row = 0; row < B * H * blocks.cells && tiles < ld; ++row) {
    for (std::int64_t d = 0; d < D; ++d) {
      float* const last = means + row * ld * D + in_panels(tiles, d, D);
      std::fill_n(last, ld - tiles, 0.0F);
    }
  }
  return means;
}

float* self_similarity(const TensorView& x, const Blocks& blocks, Smoothing smoothing, Workspace& ws) {
  const std::int64_t H = x.size(2);
  const std::int64_t D = x.size(3);
  const std::int64_t n = tiles_of(blocks, x.size(1)) * blocks.cells;
  const TokenLayout* layout = blocks.layout;
  const std::int64_t documents = layout != nullptr ? layout->documents() : 1;
  const auto* data = static_cast<const std::byte*>(x.data);
  const auto at = [&](std::int64_t b, std::int64_t s, std::int64_t h) {
    return data + (b * x.stride(0) + s * x.stride(1) + h * x.stride(2)) * static_cast<std::int64_t>(dtype_bytes(x.dtype));
  };
  const BlockKernels& kernels = block_kernels();
  const std::int64_t ld = padded(D);
  auto* similarity = ws.allocate<float>(static_cast<std::size_t>(x.size(0) * H * n));
  const Workspace::Scope scratch(ws);
  auto* shifts = ws.allocate<float>(static_cast<std::size_t>(x.size(0) * H * documents * ld));  // [B,H,documents,ld]
  std::fill_n(shifts, x.size(0) * H * documents * ld, 0.0F);
  if (smoothing == Smoothing::mean) {
    parallel_for(x.size(0) * H * documents, [&](std::int64_t i, int) {
      const std::int64_t b = i / documents / H;
      const Block all = document_of(blocks, x.size(1), b, i % documents);
      float* shift = shifts + i * ld;
      kernels.sum_rows(at(b, all.first, i / documents % H), x.dtype, x.stride(1), all.tokens, all.count, D, shift);
      for (std::int64_t d = 0; d < D && all.count > 0; ++d) {
        const float mean = shift[d] / static_cast<float>(all.count);
        shift[d] = std::isfinite(mean) ? mean : 0.0F;  // one bad token does not decide about all blocks
      }
    });
  }
  auto* rows = ws.allocate<float>(static_cast<std::size_t>(num_threads() * 2 * ld));
  parallel_for(x.size(0) * n * H, [&](std::int64_t task, int worker) {  // heads fastest, as in block_means
    const std::int64_t h = task % H;
    const std::int64_t g = task / H % n;
    const std::int64_t b = task / H / n;
    const Block block = block_of(blocks, x.size(1), b, g);
    const std::int64_t document = layout != nullptr ? layout->document(g / blocks.cells) : 0;
    float* row = rows + worker * 2 * ld;
    float* sum = row + ld;
    kernels.sum_directions(at(b, block.first, h), x.dtype, x.stride(1), block.tokens, block.count, D,
                           shifts + ((b * H + h) * documents + document) * ld, row, sum);
    double square = 0.0;
    for (std::int64_t d = 0; d < D; ++d) square += static_cast<double>(sum[d]) * static_cast<double>(sum[d]);
    const auto count = static_cast<double>(std::max<std::int64_t>(block.count, 1));
    similarity[(b * H + h) * n + g] = static_cast<float>(square / (count * count));
  });
  return similarity;
}

}  // namespace winnow
