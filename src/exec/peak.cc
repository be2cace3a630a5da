#include "exec/peak.h"

#include <algorithm>
#include <chrono>

#include "device/cpu/features.h"
#include "exec/cpu/peak_loops.h"

namespace winnow {

namespace {

double best_rate(double (*loop)(std::int64_t), std::int64_t iterations) {
  using Clock = std::chrono::steady_clock;
  double best = 0.0;
  for (int run = 0; run < 3; ++run) {
    const auto begin = Clock::now();
    const double flops = loop(iterations);
    best = std::max(best, flops / std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return best;
}

}  // namespace

double measure_amx_bf16_flops() { return cpu_features().amx_bf16 ? best_rate(amx_bf16_loop, 400000) : 0.0; }
double measure_avx512_f32_flops() { return cpu_features().avx512 ? best_rate(avx512_f32_loop, 2000000) : 0.0; }

}  // namespace winnow
