// Means of blocks of tokens: what estimates are made from.
#pragma once

#include <cstdint>
#include <span>

#include "winnow/tensor.h"

namespace winnow {

class Workspace;

// How means are laid out: [B,H,blocks,D], or [B,H,D,padded(blocks)] with padding columns of 0.
enum class MeanLayout : std::uint8_t { rows, columns };

// The f32 mean of tokens [g*block, (g+1)*block) of every head, over those below the batch entry's length (`lengths`, or S if
// empty). Blocks without tokens are 0. x: [B,S,H,D] f32, f16 or bf16 with contiguous D; sums in f32 in token order.
// The result comes from `ws`.
float* block_means(const TensorView& x, std::int64_t block, std::span<const std::int64_t> lengths, MeanLayout layout, Workspace& ws);

}  // namespace winnow
