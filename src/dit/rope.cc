#include "dit/rope.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/threads.h"
#include "winnow/error.h"

namespace winnow::dit {

RopeSplit rope_split(std::int64_t head_dim) {
  const std::int64_t side = 2 * (head_dim / 6);
  return {head_dim - 2 * side, side, side};
}

namespace {

// [length, dim]: cosine and sine of every pair.
std::vector<float> make_axis(std::int64_t length, std::int64_t dim) {
  std::vector<float> axis;
  for (std::int64_t position = 0; position < length; ++position) {
    for (std::int64_t j = 0; j < dim / 2; ++j) {
      const double frequency = 1.0 / std::pow(10000.0, 2.0 * static_cast<double>(j) / static_cast<double>(dim));
      const double angle = static_cast<double>(position) * frequency;
      axis.push_back(static_cast<float>(std::cos(angle)));
      axis.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return axis;
}

}  // namespace

Tensor make_rope(const TransformerConfig& config, const Grid& grid) {
  for (const std::int64_t length : {grid.frames, grid.height, grid.width}) {
    if (length < 1 || length > config.rope_max_seq_len) {
      throw Error("rope", "grid: expected 1 to " + std::to_string(config.rope_max_seq_len) + " tokens per axis, got " +
                              std::to_string(grid.frames) + "x" + std::to_string(grid.height) + "x" + std::to_string(grid.width));
    }
  }
  const RopeSplit split = rope_split(config.head_dim);
  const std::vector<float> frames = make_axis(grid.frames, split.frames);
  const std::vector<float> height = make_axis(grid.height, split.height);
  const std::vector<float> width = make_axis(grid.width, split.width);
  Tensor table(DType::f32, {grid.tokens(), config.head_dim});
  parallel_for(grid.frames * grid.height, [&](std::int64_t row, int) {
    for (std::int64_t x = 0; x < grid.width; ++x) {
      float* out = table.as<float>() + (row * grid.width + x) * config.head_dim;
      out = std::copy_n(frames.data() + row / grid.height * split.frames, split.frames, out);
      out = std::copy_n(height.data() + row % grid.height * split.height, split.height, out);
      std::copy_n(width.data() + x * split.width, split.width, out);
    }
  });
  return table;
}

}  // namespace winnow::dit
