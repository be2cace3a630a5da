// What is known of every method beside its options.
#pragma once

#include <cstdint>
#include <optional>

#include "select/budgets.h"
#include "winnow/methods.h"
#include "winnow/plan.h"

namespace winnow {

// Blocks per tile that a method takes means of and compares.
struct Cells {
  std::int64_t per_query_tile = 1;
  std::int64_t per_key_tile = 1;
};
Cells cells_of(const Method& method, const PlanGeometry& geometry);

// The file of budgets per head that the method names, if any. Throws Error if it cannot be read.
std::optional<HeadBudgets> load_budgets(const Method& method);

// Share of attention's work done on the tiles that were visited: QK always, softmax and PV unless skipped.
double skip_softmax_share(std::int64_t granules_tested, std::int64_t granules_skipped);

}  // namespace winnow
