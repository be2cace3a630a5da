#include "dit/rope.h"

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

struct Axis {
  std::int64_t dim = 0;
  std::vector<float> cos, sin;  // [length, dim / 2]
};

Axis make_axis(std::int64_t length, std::int64_t dim) {
  Axis axis;
  axis.dim = dim;
  for (std::int64_t position = 0; position < length; ++position) {
    for (std::int64_t j = 0; j < dim / 2; ++j) {
      const double frequency = 1.0 / std::pow(10000.0, 2.0 * static_cast<double>(j) / static_cast<double>(dim));
      const double angle = static_cast<double>(position) * frequency;
      axis.cos.push_back(static_cast<float>(std::cos(angle)));
      axis.sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return axis;
}

float* write_axis(const Axis& axis, std::int64_t position, float* c, std::int64_t head_dim) {
  float* s = c + head_dim;
  const std::int64_t pairs = axis.dim / 2;
  for (std::int64_t j = 0; j < pairs; ++j) {
    const auto at = static_cast<std::size_t>(position * pairs + j);
    c[2 * j] = c[2 * j + 1] = axis.cos[at];
    s[2 * j] = -axis.sin[at];
    s[2 * j + 1] = axis.sin[at];
  }
  return c + axis.dim;
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
  const Axis frames = make_axis(grid.frames, split.frames);
  const Axis height = make_axis(grid.height, split.height);
  const Axis width = make_axis(grid.width, split.width);
  Tensor table(DType::f32, {grid.tokens(), 2, config.head_dim});
  parallel_for(grid.frames * grid.height, [&](std::int64_t row, int) {
    for (std::int64_t x = 0; x < grid.width; ++x) {
      float* c = table.as<float>() + (row * grid.width + x) * 2 * config.head_dim;
      c = write_axis(frames, row / grid.height, c, config.head_dim);
      c = write_axis(height, row % grid.height, c, config.head_dim);
      write_axis(width, x, c, config.head_dim);
    }
  });
  return table;
}

}  // namespace winnow::dit
