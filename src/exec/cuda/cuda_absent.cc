// Stands in for the executors of GPUs in builds without CUDA.
#include "exec/cuda/executors.h"
#include "exec/cuda/measure.h"
#include "winnow/cuda.h"
#include "winnow/error.h"

namespace winnow {

namespace {
const char* const kMissing = "a build with WINNOW_CUDA=ON";
[[noreturn]] void refuse() { throw Error("cuda", std::string("needs ") + kMissing); }
}  // namespace

const GpuQuery& query_gpus() {
  static const GpuQuery query{{}, kMissing};
  return query;
}
std::string driver_requirement() { return {}; }
GpuCode sm90_code() { return {}; }
GpuCode sm80_code() { return {}; }
void run_sm90(const AttendArgs&, DeviceWorkspace&) { refuse(); }
void run_sm80(const AttendArgs&, DeviceWorkspace&) { refuse(); }

DeviceWorkspace::DeviceWorkspace(int device_index, std::size_t) : device_index_(device_index) { refuse(); }
DevicePlan::DevicePlan(const TilePlan&, DeviceWorkspace&, void*) { refuse(); }
std::size_t DevicePlan::bytes(const TilePlan&) { refuse(); }
std::size_t attend_workspace_bytes(const DevicePlan&, const TensorView&, const TensorView&) { refuse(); }

namespace cuda {
void copy_to_device(void*, const void*, std::size_t, int) { refuse(); }
void copy_to_host(void*, const void*, std::size_t, int) { refuse(); }
double seconds_of(const std::function<void()>&, int) { refuse(); }
}  // namespace cuda

}  // namespace winnow
