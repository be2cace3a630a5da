#include "report/machine.h"

#include "device/cpu/features.h"
#include "exec/peak.h"

namespace winnow::report {

std::vector<Peak> measure_peaks() {
  std::vector<Peak> peaks;
  if (const double flops = measure_amx_bf16_flops(); flops > 0.0) peaks.push_back({"amx_bf16", flops});
  if (const double flops = measure_avx512_f32_flops(); flops > 0.0) peaks.push_back({"avx512_f32", flops});
  return peaks;
}

std::vector<std::string> isa_names() {
  const CpuFeatures& cpu = cpu_features();
  std::vector<std::string> names;
  if (cpu.avx2) names.emplace_back("AVX2");
  if (cpu.avx512) names.emplace_back("AVX-512");
  if (cpu.avx512_bf16) names.emplace_back("AVX512-BF16");
  if (cpu.amx_bf16) names.emplace_back("AMX-BF16");
  if (cpu.amx_int8) names.emplace_back("AMX-INT8");
  return names;
}

}  // namespace winnow::report
