// The lists of a plan that owns its memory. Index 0 refine, 1 skim, 2 excluded.
#pragma once

#include <cstdint>
#include <vector>

#include "winnow/plan.h"

namespace winnow {

struct TilePlan::Storage {
  std::vector<std::int64_t> offsets[3];
  std::vector<std::int32_t> tiles[3];
};

}  // namespace winnow
