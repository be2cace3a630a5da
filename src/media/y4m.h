// YUV4MPEG2: the simplest video file that every tool reads, uncompressed.
//
// Winnow writes 8-bit 4:4:4 planes (C444), progressive, square pixels, limited range, with the BT.601 matrix: the header has
// no field for the matrix, and readers take BT.601 when nothing says otherwise.
//   Y  =  16 + 219 (0.299 R + 0.587 G + 0.114 B)      R, G, B in [0,1], values outside are clamped, NaN is 0
//   Cb = 128 + 224 (B - Y') / 1.772                   Y' = 0.299 R + 0.587 G + 0.114 B
//   Cr = 128 + 224 (R - Y') / 1.402
// each rounded to nearest. Nothing is subsampled or compressed.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "winnow/callbacks.h"
#include "winnow/tensor.h"

namespace winnow::media {

using ByteSink = std::function<void(std::span<const std::byte>)>;

// frames: [F,H,W,3] contiguous f32. fps in [1,1000]. Calls progress once per frame (stage "write"); throws Cancelled if it
// returns false, and whatever the sink throws.
void write_y4m(const TensorView& frames, int fps, const ByteSink& sink, const Progress& progress = {});

}  // namespace winnow::media
