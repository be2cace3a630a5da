// The engine on winnow-tiny: seconds per dense step, and the shares of it. Run from the repository's root.
//   other_share   neither attention nor linear layers; at most 0.15 is the aim
// Waits at the end of a parallel pass count as what its workers did before, so other processes on the machine blur the shares;
// with one thread (WINNOW_THREADS=1) there are none.
#include <benchmark/benchmark.h>

#include "winnow/engine.h"

namespace winnow {
namespace {

void dense_steps(benchmark::State& state) {
  Engine engine("models/winnow-tiny", {.precision = Precision::bf16, .progress = {}});
  GenerateOptions options;
  options.prompt = "a large red ball moving right over a checkered navy background";
  options.steps = static_cast<int>(state.range(0));
  GenerateReport best;
  for (auto _ : state) {
    const GenerateResult result = engine.generate(options);
    state.SetIterationTime(result.report.seconds);
    if (best.seconds == 0.0 || result.report.seconds < best.seconds) best = result.report;
  }
  state.counters["s_per_step"] = best.seconds / options.steps;
  state.counters["attention_share"] = best.attention.attend_seconds / best.seconds;
  state.counters["cross_share"] = best.cross_attention_seconds / best.seconds;
  state.counters["linear_share"] = best.linear_seconds / best.seconds;
  state.counters["other_share"] = best.other_seconds / best.seconds;
}
BENCHMARK(dense_steps)->Arg(10)->Iterations(5)->UseManualTime()->Unit(benchmark::kSecond);

}  // namespace
}  // namespace winnow

BENCHMARK_MAIN();
