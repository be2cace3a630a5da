// What every selector shares about its inputs.
#pragma once

#include <cstdint>

#include "winnow/select.h"

namespace winnow {

// NaN means 1/sqrt(head_dim).
float logit_scale(float scale, std::int64_t head_dim);

// Throws Error unless exactly one of the options is in (0,1] and the other is 0.
void check_cdf_or_density(float cdf, float density);

}  // namespace winnow
