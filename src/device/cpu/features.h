// Which instruction sets this process may use. The first call asks the operating system for the AMX tile state.
#pragma once

#include <string>

namespace winnow {

struct CpuFeatures {
  bool avx2 = false;    // AVX2, FMA, F16C
  bool avx512 = false;  // AVX-512 F, BW, DQ, VL
  bool avx512_bf16 = false;
  bool amx_bf16 = false;  // with tile state granted
  bool amx_int8 = false;
};
const CpuFeatures& cpu_features();
std::string cpu_name();  // the processor's own name, or "unknown"

}  // namespace winnow
