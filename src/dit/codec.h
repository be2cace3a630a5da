// The block-DCT codec of small models: latents to pixels by a fixed linear map. It has no weights.
#pragma once

#include "dit/config.h"
#include "winnow/tensor.h"

namespace winnow::dit {

class BlockDctCodec {
 public:
  explicit BlockDctCodec(const CodecConfig& config);
  // latents [1,C,F,h,w] f32 -> frames [F, h*block, w*block, 3] f32 in [0,1]
  //   c = z * std + mean;  pixel = sum_ky,kx C[ky][y] C[kx][x] c[ky][kx];  clamped to [-1,1], then (p + 1) / 2
  // Channel = rgb * block^2 + ky * block + kx, C the orthonormal DCT-II matrix.
  Tensor decode(const TensorView& latents) const;

 private:
  CodecConfig config_;
  std::vector<float> basis_;  // [block frequency, block place]
};

}  // namespace winnow::dit
