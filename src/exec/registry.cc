#include "exec/registry.h"

#include <algorithm>
#include <array>

#include "device/cpu/features.h"
#include "exec/cpu/attend_cpu.h"
#include "exec/reference.h"
#include "winnow/error.h"

namespace winnow {

namespace {

constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16};

constexpr SkipGranule kReferenceGranule = {.rows = 128, .keys = 64};
SkipCounts run_reference(const AttendArgs& args, Workspace& ws) { return attend_reference(args, kReferenceGranule, ws); }

std::string nothing() { return {}; }

using Kernels = const CpuKernels*();

// What a CPU executor lacks, given one feature of the processor.
std::string lacking(Kernels* kernels, bool feature, const char* name) {
  if (kernels() == nullptr) return "a build with WINNOW_X86=ON";
  return feature ? "" : std::string("a processor with ") + name;
}
std::string lacking_amx() {
  return lacking(amx_bf16_kernels, cpu_features().amx_bf16, "AMX-BF16 and an operating system that grants tiles");
}
std::string lacking_avx512() { return lacking(avx512_f32_kernels, cpu_features().avx512, "AVX-512 (F, BW, DQ, VL)"); }
std::string lacking_avx2() { return lacking(avx2_f32_kernels, cpu_features().avx2, "AVX2, FMA and F16C"); }

template <Kernels* kKernels>
SkipCounts run_cpu(const AttendArgs& args, Workspace& ws) {
  return attend_cpu(*kKernels(), args, ws);
}

constexpr DType kBf16[] = {DType::bf16};
constexpr int kMaxHeadDim = 256;
constexpr Executor kExecutors[] = {
    {"amx_bf16", "AMX-BF16", "bf16 products, f32 sums", kBf16, kMaxHeadDim, {32, kUnitKeys}, false, lacking_amx, run_cpu<amx_bf16_kernels>},
    {"avx512_f32",
     "AVX-512",
     "f32 products, f32 sums",
     kFloats,
     kMaxHeadDim,
     {32, kUnitKeys},
     false,
     lacking_avx512,
     run_cpu<avx512_f32_kernels>},
    {"avx2_f32", "AVX2", "f32 products, f32 sums", kFloats, kMaxHeadDim, {16, kUnitKeys}, false, lacking_avx2, run_cpu<avx2_f32_kernels>},
    {"scalar_f32", "any", "f32 products, f32 sums", kFloats, kMaxHeadDim, {16, kUnitKeys}, false, nothing, run_cpu<scalar_f32_kernels>},
    {"reference", "any", "f64 products, f64 sums", kFloats, 65536, kReferenceGranule, true, nothing, run_reference},
};

std::string dtype_list(std::span<const DType> dtypes) {
  std::string text;
  for (const DType dtype : dtypes) text += (text.empty() ? "" : ", ") + std::string(dtype_name(dtype));
  return text;
}

// Why an executor cannot run this, or empty.
std::string unmet(const Executor& executor, DType dtype, std::int64_t head_dim) {
  std::string reason = executor.missing();
  if (!reason.empty()) return "needs " + reason;
  if (std::ranges::find(executor.dtypes, dtype) == executor.dtypes.end()) {
    return "takes " + dtype_list(executor.dtypes) + ", not " + dtype_name(dtype);
  }
  if (head_dim > executor.max_head_dim) {
    return "takes a head dim up to " + std::to_string(executor.max_head_dim) + ", not " + std::to_string(head_dim);
  }
  return {};
}

}  // namespace

std::span<const Executor> executor_records() { return kExecutors; }

const Executor& choose_executor(std::string_view name, const char* source, DType dtype, std::int64_t head_dim) {
  // Every call of attend() comes here: texts, which allocate, are made only for an error.
  static const auto available = [] {
    std::array<bool, std::size(kExecutors)> found{};
    for (std::size_t i = 0; i < found.size(); ++i) found[i] = kExecutors[i].missing().empty();
    return found;
  }();
  for (std::size_t i = 0; i < std::size(kExecutors); ++i) {
    const Executor& executor = kExecutors[i];
    if (!available[i] || (name.empty() ? executor.only_by_name : name != executor.name)) continue;
    if (head_dim <= executor.max_head_dim && std::ranges::find(executor.dtypes, dtype) != executor.dtypes.end()) return executor;
  }
  std::string names;
  std::string reasons;
  for (const Executor& executor : kExecutors) {
    names += (names.empty() ? "" : ", ") + std::string(executor.name);
    if (name.empty() ? executor.only_by_name : name != executor.name) continue;
    const std::string reason = unmet(executor, dtype, head_dim);
    reasons += "; " + std::string(executor.name) + " " + reason;
  }
  if (name.empty()) throw Error("attend", "executor: none takes these inputs" + reasons);
  if (!reasons.empty()) throw Error("attend", std::string(source) + ": " + reasons.substr(2) + "; the executors are " + names);
  throw Error("attend", std::string(source) + ": expected one of " + names + ", got \"" + std::string(name) + "\"");
}

std::vector<ExecutorInfo> executors() {
  std::vector<ExecutorInfo> infos;
  for (const Executor& executor : kExecutors) {
    const std::string missing = executor.missing();
    infos.push_back({.name = executor.name,
                     .isa = executor.isa,
                     .dtypes = {executor.dtypes.begin(), executor.dtypes.end()},
                     .computes_in = executor.computes_in,
                     .max_head_dim = executor.max_head_dim,
                     .skip_rows = executor.granule.rows,
                     .skip_keys = executor.granule.keys,
                     .available = missing.empty(),
                     .why_not = missing.empty() ? "" : "needs " + missing});
  }
  return infos;
}

}  // namespace winnow
