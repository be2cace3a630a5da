// Rotary position tables of a latent grid.
#pragma once

#include <cstdint>

#include "dit/config.h"
#include "winnow/steps.h"
#include "winnow/tensor.h"

namespace winnow::dit {

// Head elements given to one axis: height and width get 2 (d / 6) each, frames the rest.
struct RopeSplit {
  std::int64_t frames = 0, height = 0, width = 0;
};
RopeSplit rope_split(std::int64_t head_dim);

// [tokens, 2, head_dim] f32: row 0 is cos, row 1 is sin, both written once per element so that with the neighbour
// x'[2p] = x[2p+1], x'[2p+1] = x[2p]:   rotated = x * row0 + x' * row1   (row 1 is negative at even places)
// Angle of pair j of an axis with a elements: position / 10000^(2j/a), in f64.
// Throws Error if an axis is longer than rope_max_seq_len.
Tensor make_rope(const TransformerConfig& config, const Grid& grid);

}  // namespace winnow::dit
