#include "device/cpu/features.h"

#if defined(__x86_64__)  // the one place that asks which processor family this is
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#endif

namespace winnow {

#if defined(__x86_64__)

namespace {

bool bit(unsigned value, int position) { return ((value >> static_cast<unsigned>(position)) & 1U) != 0; }

CpuFeatures detect() {
  CpuFeatures features;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || !bit(c, 27)) return features;  // OSXSAVE
  const bool fma = bit(c, 12) && bit(c, 29);                                // FMA, F16C
  unsigned xcr0 = 0;
  unsigned high = 0;
  __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
  const bool ymm = (xcr0 & 0x6U) == 0x6U;
  const bool zmm = (xcr0 & 0xE6U) == 0xE6U;
  const bool tiles = (xcr0 & 0x60000U) == 0x60000U;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return features;
  features.avx2 = ymm && fma && bit(b, 5);
  features.avx512 = features.avx2 && zmm && bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);
  const bool amx_tile = bit(d, 24);
  const bool amx_bf16 = bit(d, 22);
  const bool amx_int8 = bit(d, 25);
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) features.avx512_bf16 = features.avx512 && bit(a, 5);
  if (features.avx512_bf16 && tiles && amx_tile && amx_bf16) {
    constexpr long kArchReqXcompPerm = 0x1023;
    constexpr long kXfeatureXtiledata = 18;
    const bool granted = syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
    features.amx_bf16 = granted;
    features.amx_int8 = granted && amx_int8;
  }
  return features;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

std::string cpu_name() {
  unsigned text[12] = {};
  for (unsigned i = 0; i < 3; ++i) {
    if (__get_cpuid(0x80000002U + i, &text[4 * i], &text[4 * i + 1], &text[4 * i + 2], &text[4 * i + 3]) == 0) return "unknown";
  }
  char name[49] = {};
  std::memcpy(name, text, 48);
  const char* start = name;
  while (*start == ' ') ++start;
  return *start == '\0' ? "unknown" : start;
}

#else

const CpuFeatures& cpu_features() {
  static const CpuFeatures features;
  return features;
}

std::string cpu_name() { return "unknown"; }

#endif

}  // namespace winnow
