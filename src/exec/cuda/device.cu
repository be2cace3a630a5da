// The GPUs of this machine, what runs on them, and their memory.
#include "exec/cuda/executors.h"
#include "exec/cuda/runtime.h"
#include "exec/registry.h"
#include "winnow/cuda.h"

namespace winnow {

namespace {

std::string cuda_version(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

GpuQuery ask_driver() {
  GpuQuery query;
  int count = 0;
  const cudaError_t e = cudaGetDeviceCount(&count);
  if (e == cudaErrorInsufficientDriver) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    query.why_none = driver == 0 ? "an NVIDIA driver" : "a " + driver_requirement() + ", not " + cuda_version(driver);
  } else if (e != cudaSuccess || count == 0) {
    query.why_none = std::string("an NVIDIA GPU (") + cudaGetErrorString(e == cudaSuccess ? cudaErrorNoDevice : e) + ")";
  }
  if (e != cudaSuccess) {
    cudaGetLastError();  // it is answered: later calls must not find it
    return query;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    cuda::check(cudaGetDeviceProperties(&properties, i), "cuda", "cudaGetDeviceProperties");
    query.found.push_back({properties.name, 10 * properties.major + properties.minor});
  }
  return query;
}

const std::vector<std::string>& targets_of_build() {
  static const std::vector<std::string> targets = split_targets(WINNOW_CUDA_TARGETS);
  return targets;
}
const std::vector<std::string>& sm90_targets() {
  static const std::vector<std::string> targets{"90a"};
  return targets;
}

std::byte* take(std::size_t bytes, int gpu) {
  const cuda::OnDevice on(gpu);
  void* p = nullptr;
  const cudaError_t e = cudaMalloc(&p, bytes);
  if (e != cudaSuccess) {
    cudaGetLastError();
    throw Error("workspace", "cuda:" + std::to_string(gpu) + ": asked for " + std::to_string(bytes) + " bytes: " + cudaGetErrorString(e));
  }
  return static_cast<std::byte*>(p);
}
void give_back(std::byte* p, int) { cudaFree(p); }

// The first index that has an executor, which is what a GPU needs to be of use here.
int usable(int gpu) {
  std::string reasons;
  for (const Executor& executor : executor_records()) {
    if (executor.device() != Device::cuda) continue;
    const std::string missing = executor.missing(gpu);
    if (missing.empty()) return gpu;
    reasons += "; " + std::string(executor.name) + " needs " + missing;
  }
  throw Error("cuda", "cuda:" + std::to_string(gpu) + " has no executor" + reasons);
}

}  // namespace

const GpuQuery& query_gpus() {
  static const GpuQuery query = ask_driver();
  return query;
}

// A driver runs what was built with any release of its major version.
std::string driver_requirement() { return "driver for CUDA " + std::to_string(CUDART_VERSION / 1000) + ".0 or later"; }

GpuCode sm90_code() { return {.targets = sm90_targets(), .lowest = 90, .portable = false}; }
GpuCode sm80_code() { return {.targets = targets_of_build(), .lowest = 80, .portable = true}; }

DeviceWorkspace::DeviceWorkspace(int device_index, std::size_t initial_bytes)
    : Workspace({take, give_back, usable(device_index)}, initial_bytes), device_index_(device_index) {}

}  // namespace winnow
