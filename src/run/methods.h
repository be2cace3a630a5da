// What is known of every method beside its options.
#pragma once

#include <cstdint>

#include "winnow/methods.h"
#include "winnow/plan.h"

namespace winnow {

// Blocks per tile that a method takes means of and compares.
struct Cells {
  std::int64_t per_query_tile = 1;
  std::int64_t per_key_tile = 1;
};
Cells cells_of(const Method& method, const PlanGeometry& geometry);

}  // namespace winnow
