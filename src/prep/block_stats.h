// Means of blocks of tokens: what estimates are made from.
#pragma once

#include <cstdint>
#include <span>

#include "winnow/plan.h"
#include "winnow/tensor.h"

namespace winnow {

class Workspace;

// How means are laid out: [B,H,blocks,D], or per (batch, head) in_panels() of columns [cells, padded(tiles)] with padding of 0, which
// scores are computed from.
enum class MeanLayout : std::uint8_t { rows, panels };

// How tokens are cut into blocks: tiles are runs of `tile` tokens, over those below the batch entry's length (`lengths`, or all if
// empty), or those of a layout; each is cut into `cells` blocks of tile / cells tokens, of which the last ones may be short or empty.
struct Blocks {
  std::int64_t tile = 64;
  std::int64_t cells = 1;
  bool widen = false;  // a short block takes in the tokens before it, of its document, until it has as many as a full one
  std::span<const std::int64_t> lengths = {};
  const TokenLayout* layout = nullptr;
};
Blocks query_blocks(const PlanGeometry& geometry, std::int64_t cells = 1);  // of a geometry's query tiles
Blocks key_blocks(const PlanGeometry& geometry, std::int64_t cells = 1);    // of its key tiles

// The f32 mean of every block of every head. Blocks without tokens are 0. x: [B,S,H,D] f32, f16 or bf16 with contiguous D; sums in
// f32 in the order of the block. The result comes from `ws`.
float* block_means(const TensorView& x, const Blocks& blocks, MeanLayout layout, Workspace& ws);

enum class Smoothing : std::uint8_t { none, mean };  // mean: that over all valid tokens of the document is subtracted, where finite

// |sum over the block's tokens of x/|x||^2 / n^2, [B,H,blocks]: the mean cosine over all pairs of its n tokens, 1 for parallel
// ones. 0 for blocks without tokens, NaN where a token is not finite. x as in block_means().
float* self_similarity(const TensorView& x, const Blocks& blocks, Smoothing smoothing, Workspace& ws);

}  // namespace winnow
