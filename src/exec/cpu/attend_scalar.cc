#include "exec/cpu/attend_cpu.h"
#include "exec/reference.h"

namespace winnow {

SkipCounts attend_scalar(const AttendArgs& args, Workspace& ws) { return attend_reference(args, kScalarGranule, ws); }

}  // namespace winnow
