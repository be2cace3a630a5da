// How far two results are apart. Pure functions; sums in f64.
#pragma once

#include <cstdint>
#include <span>

#include "winnow/tensor.h"

namespace winnow {

// Any strides, dtypes f32, f16, bf16, f64, which may differ; shapes must agree. NaN in, NaN out.
// Errors are 0 if both are all zero and inf if only the reference is; cosine is 1 if both are and 0 if only one is.
double rel_l1(const TensorView& value, const TensorView& reference);  // sum |a-b| / sum |b|
double rel_l2(const TensorView& value, const TensorView& reference);  // ||a-b|| / ||b||
double cosine(const TensorView& value, const TensorView& reference);  // a.b / (||a|| ||b||)

// Float frames in [0,1], [F,H,W,3] contiguous f32. Global mean squared error over the video; capped at 100 dB.
double psnr(const TensorView& value, const TensorView& reference);
// SSIM on BT.601 luma, Gaussian window 11x11 sigma 1.5, K1 0.01, K2 0.03, borders without padding; mean over frames.
// Throws Error if a frame is smaller than 11x11.
double ssim(const TensorView& value, const TensorView& reference);

// Rank correlation with average ranks for ties. NaN if either side is constant. Throws Error if sizes differ or < 2.
double spearman(std::span<const double> a, std::span<const double> b);

}  // namespace winnow
