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

// [tokens, head_dim] f32: element 2p is the cosine and 2p + 1 the sine of pair p, which turns the adjacent elements
//   x[2p], x[2p+1]   into   x[2p] cos - x[2p+1] sin,  x[2p] sin + x[2p+1] cos
// Angle of pair j of an axis with a elements: position / 10000^(2j/a), in f64.
// Throws Error if an axis is longer than rope_max_seq_len.
Tensor make_rope(const TransformerConfig& config, const Grid& grid);

}  // namespace winnow::dit
