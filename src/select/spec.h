// What every selector shares about its inputs.
#pragma once

#include <cstdint>

#include "winnow/select.h"

namespace winnow {

// NaN means 1/sqrt(head_dim).
float logit_scale(float scale, std::int64_t head_dim);

}  // namespace winnow
