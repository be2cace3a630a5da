// What planning costs, as a share of the dense attention that it is meant to shorten. One batch entry, 4 heads, D = 128, bf16.
// Not measured: whether the plan is any good (see the comparison harness).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "core/numeric.h"
#include "core/random.h"
#include "winnow/attend.h"
#include "winnow/select/mean_pool.h"
#include "winnow/workspace.h"

namespace winnow {
namespace {

constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kHeadDim = 128;

Tensor random_bf16(std::int64_t S, std::uint64_t seed) {
  Tensor t(DType::bf16, {1, S, kHeads, kHeadDim});
  std::vector<float> x(static_cast<std::size_t>(t.numel()));
  fill_normal(x, seed);
  for (std::size_t i = 0; i < x.size(); ++i) t.as<bf16>()[i] = to_bf16(x[i]);
  return t;
}

double seconds(std::chrono::steady_clock::duration d) { return std::chrono::duration<double>(d).count(); }

void MeanPoolPlanning(benchmark::State& state) {
  const std::int64_t S = state.range(0);
  const Tensor q = random_bf16(S, 1);
  const Tensor k = random_bf16(S, 2);
  const Tensor v = random_bf16(S, 3);
  const Tensor out(DType::bf16, {1, S, kHeads, kHeadDim});
  Workspace ws;
  std::vector<double> times;
  for (auto _ : state) {
    const Workspace::Scope scope(ws);
    const auto start = std::chrono::steady_clock::now();
    const TilePlan plan = select(q, k, {}, MeanPool{}, ws);
    times.push_back(seconds(std::chrono::steady_clock::now() - start));
    benchmark::DoNotOptimize(plan.tiles(Tier::refine, 0).data());
  }
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
  const double median = times[times.size() / 2];

  const TilePlan dense = TilePlan::dense(plan_geometry(q, k, {}), DenseReason::requested);
  double best = 1e30;
  for (int i = 0; i < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    attend(dense, q, k, v, out, {}, ws);
    best = std::min(best, seconds(std::chrono::steady_clock::now() - start));
  }
  state.counters["ms_per_head"] = median * 1e3 / kHeads;
  state.counters["dense_ms_per_head"] = best * 1e3 / kHeads;
  state.counters["percent_of_dense"] = 100.0 * median / best;
}
BENCHMARK(MeanPoolPlanning)->Arg(4752)->Arg(8192)->Arg(32760)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace winnow

BENCHMARK_MAIN();
