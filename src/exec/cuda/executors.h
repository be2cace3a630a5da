// The executors of GPUs, for the registry. In builds without CUDA, cuda_absent.cc has the same functions.
#pragma once

#include <string>
#include <vector>

#include "exec/attend_args.h"
#include "exec/gpu_support.h"

namespace winnow {

class DeviceWorkspace;

struct GpuQuery {
  std::vector<Gpu> found;
  std::string why_none;  // what is missing, if none was found
};
const GpuQuery& query_gpus();  // asks the driver once

std::string driver_requirement();  // "driver for CUDA 13.0 or later"; empty in builds without CUDA

GpuCode sm90_code();
GpuCode sm80_code();

// Queues the call on args.stream. Throws Error, before any work, if the arguments do not suit the kernels of GPUs.
void run_sm90(const AttendArgs& args, DeviceWorkspace& ws);
void run_sm80(const AttendArgs& args, DeviceWorkspace& ws);

}  // namespace winnow
