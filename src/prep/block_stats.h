// Means of blocks of tokens: what estimates are made from.
#pragma once

#include <cstdint>
#include <span>

#include "winnow/tensor.h"

namespace winnow {

class Workspace;

// How means are laid out: [B,H,blocks,D], or [B,H,D,cells,padded(blocks / cells, rounded up)] with padding of 0, in which block g
// is entry (g % cells, g / cells): the cells of a tile lie under each other.
enum class MeanLayout : std::uint8_t { rows, columns };

// The f32 mean of tokens [g*block, (g+1)*block) of every head, over those below the batch entry's length (`lengths`, or S if
// empty). Blocks without tokens are 0. x: [B,S,H,D] f32, f16 or bf16 with contiguous D; sums in f32 in token order.
// The result comes from `ws`.
float* block_means(const TensorView& x, std::int64_t block, std::span<const std::int64_t> lengths, MeanLayout layout, Workspace& ws,
                   std::int64_t cells = 1);

enum class Smoothing : std::uint8_t { none, mean };  // mean: that over all valid tokens of the head is subtracted first, where finite

// |sum over the block's tokens of x/|x||^2 / n^2, [B,H,blocks]: the mean cosine over all pairs of its n valid tokens, 1 for parallel
// ones. 0 for blocks without tokens, NaN where a token is not finite. Blocks, lengths and x as in block_means().
float* self_similarity(const TensorView& x, std::int64_t block, std::span<const std::int64_t> lengths, Smoothing smoothing, Workspace& ws);

}  // namespace winnow
