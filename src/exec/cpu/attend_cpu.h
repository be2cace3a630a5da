// The CPU executors. One algorithm, compiled per instruction set.
#pragma once

#include "exec/attend_args.h"

namespace winnow {

class Workspace;

inline constexpr SkipGranule kScalarGranule = {.rows = 16, .keys = 64};
SkipCounts attend_scalar(const AttendArgs& args, Workspace& ws);

}  // namespace winnow
