// Whether numbers are numbers.
#pragma once

#include "winnow/tensor.h"

namespace winnow {

// Whether no value of a contiguous f32, f16 or bf16 tensor is NaN or infinite. Allocates nothing.
bool all_finite(const TensorView& x);

}  // namespace winnow
