// What every writer of frames asks of its input: [F,H,W,3] contiguous f32 in [0,1].
#pragma once

#include <cstdint>
#include <string>

#include "winnow/tensor.h"

namespace winnow::media {

// Throws Error naming the shape that was found.
void check_frames(const std::string& operation, const TensorView& frames);

// A channel value clamped to [0,1]; NaN becomes 0.
inline float clamp_unit(float x) { return x > 0.0F ? (x < 1.0F ? x : 1.0F) : 0.0F; }
inline std::uint8_t to_u8(float x) { return static_cast<std::uint8_t>(clamp_unit(x) * 255.0F + 0.5F); }

}  // namespace winnow::media
