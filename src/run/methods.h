// What the session shares with select(Method).
#pragma once

#include "winnow/plan.h"
#include "winnow/select.h"
#include "winnow/tensor.h"

namespace winnow {

// Throws Error unless a plan that somebody else made has the sizes of q and k.
void check_plan_fits(const TilePlan& plan, const TensorView& q, const TensorView& k, const PlanSpec& spec);

}  // namespace winnow
