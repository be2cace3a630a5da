// What the session shares with select(Method).
#pragma once

#include "winnow/plan.h"
#include "winnow/select.h"
#include "winnow/tensor.h"

namespace winnow {

// Throws Error unless a plan that somebody else made has the sizes of q and k.
void check_plan_fits(const TilePlan& plan, const TensorView& q, const TensorView& k, const PlanSpec& spec);

// Throws Error unless such a plan has the layouts of `spec`: tiles of other tokens could not keep documents and spans apart.
void check_plan_protects(const TilePlan& plan, const PlanSpec& spec);

}  // namespace winnow
