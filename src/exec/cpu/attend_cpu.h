// Runs a plan with one instruction set's kernels: packing, means, work items, threads, row statistics.
#pragma once

#include "exec/attend_args.h"
#include "exec/cpu/row_task.h"

namespace winnow {

class Workspace;

// Results do not depend on the number of threads. Scratch: packed copies of K and V of a few key heads (64 MB, or one head),
// and per thread the state of kTaskRows queries.
SkipCounts attend_cpu(const CpuKernels& kernels, const AttendArgs& args, Workspace& ws);

}  // namespace winnow
