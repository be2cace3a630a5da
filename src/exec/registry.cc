#include "exec/registry.h"

#include <algorithm>
#include <array>

#include "core/env.h"
#include "device/cpu/features.h"
#include "exec/cpu/attend_cpu.h"
#include "exec/cuda/executors.h"
#include "exec/gpu_support.h"
#include "exec/reference.h"
#include "winnow/error.h"

namespace winnow {

namespace {

constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16};

constexpr SkipGranule kReferenceGranule = {.rows = 128, .keys = 64};
SkipCounts run_reference(const AttendArgs& args, Workspace& ws) { return attend_reference(args, kReferenceGranule, ws); }

std::string nothing(int) { return {}; }

using Kernels = const CpuKernels*();

// What a CPU executor lacks, given one feature of the processor.
std::string lacking(Kernels* kernels, bool feature, const char* name) {
  if (kernels() == nullptr) return "a build with WINNOW_X86=ON";
  return feature ? "" : std::string("a processor with ") + name;
}
std::string lacking_amx(int) {
  return lacking(amx_bf16_kernels, cpu_features().amx_bf16, "AMX-BF16 and an operating system that grants tiles");
}
std::string lacking_avx512(int) { return lacking(avx512_f32_kernels, cpu_features().avx512, "AVX-512 (F, BW, DQ, VL)"); }
std::string lacking_avx2(int) { return lacking(avx2_f32_kernels, cpu_features().avx2, "AVX2, FMA and F16C"); }

template <GpuCode (*kCode)()>
std::string lacking_gpu(int gpu) {
  const GpuQuery& gpus = query_gpus();
  if (gpus.found.empty()) return gpus.why_none;
  if (gpu < 0 || gpu >= static_cast<int>(gpus.found.size())) {
    return "a GPU with index 0 to " + std::to_string(gpus.found.size() - 1) + ", not " + std::to_string(gpu);
  }
  return unmet_capability(kCode(), gpus.found[static_cast<std::size_t>(gpu)]);
}

template <Kernels* kKernels>
SkipCounts run_cpu(const AttendArgs& args, Workspace& ws) {
  return attend_cpu(*kKernels(), args, ws);
}

constexpr DType kBf16[] = {DType::bf16};
constexpr DType kHalves[] = {DType::bf16, DType::f16};
constexpr int kMaxHeadDim = 256;
constexpr int kGpuHeadDims[] = {64, 128};
constexpr int kGpuAlignment = 16;  // of the copies into shared memory

constexpr Executor cpu_executor(const char* name, const char* isa, const char* computes_in, std::span<const DType> dtypes,
                                SkipGranule granule, std::string (*lacks)(int), SkipCounts (*run)(const AttendArgs&, Workspace&)) {
  return {name, isa, computes_in, dtypes, {}, kMaxHeadDim, granule, false, lacks, run, nullptr};
}
constexpr Executor gpu_executor(const char* name, const char* isa, SkipGranule granule, std::string (*lacks)(int),
                                void (*launch)(const AttendArgs&, DeviceWorkspace&)) {
  return {name, isa, "bf16 or f16 products, f32 sums", kHalves, kGpuHeadDims, 128, granule, false, lacks, nullptr, launch};
}

constexpr Executor kExecutors[] = {
    cpu_executor("amx_bf16", "AMX-BF16", "bf16 products, f32 sums", kBf16, {32, kUnitKeys}, lacking_amx, run_cpu<amx_bf16_kernels>),
    cpu_executor("avx512_f32", "AVX-512", "f32 products, f32 sums", kFloats, {32, kUnitKeys}, lacking_avx512, run_cpu<avx512_f32_kernels>),
    cpu_executor("avx2_f32", "AVX2", "f32 products, f32 sums", kFloats, {16, kUnitKeys}, lacking_avx2, run_cpu<avx2_f32_kernels>),
    cpu_executor("scalar_f32", "any", "f32 products, f32 sums", kFloats, {16, kUnitKeys}, nothing, run_cpu<scalar_f32_kernels>),
    {"reference", "any", "f64 products, f64 sums", kFloats, {}, 65536, kReferenceGranule, true, nothing, run_reference, nullptr},
    // A warpgroup votes on a step of two tiles; the step that may be ragged comes first.
    gpu_executor("sm90_wgmma", "sm_90a", {64, 128, SkipGranule::Order::last_first}, lacking_gpu<sm90_code>, run_sm90),
    // A warp votes on a tile.
    gpu_executor("sm80_mma", "sm_80 and later", {16, 64, SkipGranule::Order::ascending}, lacking_gpu<sm80_code>, run_sm80),
};

std::string dtype_list(std::span<const DType> dtypes) {
  std::string text;
  for (const DType dtype : dtypes) text += (text.empty() ? "" : ", ") + std::string(dtype_name(dtype));
  return text;
}

bool takes_head_dim(const Executor& executor, std::int64_t head_dim) {
  if (executor.head_dims.empty()) return head_dim <= executor.max_head_dim;
  return std::ranges::find(executor.head_dims, head_dim) != executor.head_dims.end();
}

std::string head_dim_text(const Executor& executor) {
  if (executor.head_dims.empty()) return "up to " + std::to_string(executor.max_head_dim);
  std::string text = "of";
  for (const int head_dim : executor.head_dims) text += (text == "of" ? " " : " or ") + std::to_string(head_dim);
  return text;
}

// Why an executor cannot run this, or empty.
std::string unmet(const Executor& executor, DType dtype, std::int64_t head_dim, const Place& place) {
  if (executor.device() != place.device) {
    return std::string("works on memory of ") + (executor.device() == Device::cpu ? "the cpu" : "a GPU") + ", not of " + place.text();
  }
  const std::string reason = executor.missing(place.gpu);
  if (!reason.empty()) return "needs " + reason;
  if (std::ranges::find(executor.dtypes, dtype) == executor.dtypes.end()) {
    return "takes " + dtype_list(executor.dtypes) + ", not " + dtype_name(dtype);
  }
  if (!takes_head_dim(executor, head_dim)) {
    return "takes a head dim " + head_dim_text(executor) + ", not " + std::to_string(head_dim);
  }
  return {};
}

// Every call of attend() asks: texts, which allocate, are made only for an error.
bool is_available(std::size_t index, const Place& place) {
  if (place.device == Device::cuda) return kExecutors[index].missing(place.gpu).empty();
  static const auto available = [] {
    std::array<bool, std::size(kExecutors)> found{};
    for (std::size_t i = 0; i < found.size(); ++i) found[i] = kExecutors[i].device() == Device::cpu && kExecutors[i].missing().empty();
    return found;
  }();
  return available[index];
}

std::string gpu_requirements(const Executor& executor) {
  const std::string driver = driver_requirement();
  return std::string("compute capability ") + (executor.launch == run_sm90 ? "9.0" : "8.0 or later, as built") +
         (driver.empty() ? "" : ", a " + driver);
}

}  // namespace

std::span<const Executor> executor_records() { return kExecutors; }

std::string Place::text() const { return device == Device::cpu ? "the cpu" : "cuda:" + std::to_string(gpu); }

const Executor& choose_executor(std::string_view name, const char* source, DType dtype, std::int64_t head_dim, const Place& place) {
  const auto asked_for = [&](const Executor& e) { return name.empty() ? !e.only_by_name && e.device() == place.device : name == e.name; };
  for (std::size_t i = 0; i < std::size(kExecutors); ++i) {
    const Executor& executor = kExecutors[i];
    if (!asked_for(executor) || executor.device() != place.device || !is_available(i, place)) continue;
    if (takes_head_dim(executor, head_dim) && std::ranges::find(executor.dtypes, dtype) != executor.dtypes.end()) return executor;
  }
  std::string names;
  std::string reasons;
  for (const Executor& executor : kExecutors) {
    names += (names.empty() ? "" : ", ") + std::string(executor.name);
    if (asked_for(executor)) reasons += "; " + std::string(executor.name) + " " + unmet(executor, dtype, head_dim, place);
  }
  if (name.empty()) throw Error("attend", "executor: none takes these inputs" + reasons);
  if (!reasons.empty()) throw Error("attend", std::string(source) + ": " + reasons.substr(2) + "; the executors are " + names);
  throw Error("attend", std::string(source) + ": expected one of " + names + ", got \"" + std::string(name) + "\"");
}

const Executor& executor_for(std::string_view name, DType dtype, std::int64_t head_dim, const Place& place) {
  if (!name.empty()) return choose_executor(name, "executor", dtype, head_dim, place);
  return choose_executor(env::executor(), "WINNOW_EXECUTOR", dtype, head_dim, place);
}

std::vector<ExecutorInfo> executors() {
  std::vector<ExecutorInfo> infos;
  for (const Executor& executor : kExecutors) {
    const std::string missing = executor.missing();
    const bool gpu = executor.device() == Device::cuda;
    infos.push_back({.name = executor.name,
                     .isa = executor.isa,
                     .device = executor.device(),
                     .dtypes = {executor.dtypes.begin(), executor.dtypes.end()},
                     .computes_in = executor.computes_in,
                     .max_head_dim = executor.max_head_dim,
                     .head_dims = {executor.head_dims.begin(), executor.head_dims.end()},
                     .alignment = gpu ? kGpuAlignment : 1,
                     .requirements = gpu ? gpu_requirements(executor) : "",
                     .skip_rows = executor.granule.rows,
                     .skip_keys = executor.granule.keys,
                     .available = missing.empty(),
                     .why_not = missing.empty() ? "" : "needs " + missing});
  }
  return infos;
}

}  // namespace winnow
