// What planning costs, as a share of the dense attention that it is meant to shorten. One batch entry, 4 heads, D = 128, bf16.
// Not measured: whether the plan is any good (see the comparison harness).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "core/numeric.h"
#include "core/random.h"
#include "winnow/attend.h"
#include "winnow/methods.h"
#include "winnow/workspace.h"

namespace winnow {
namespace {

constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kHeadDim = 128;
constexpr std::size_t kDenseRuns = 5;

Tensor random_bf16(std::int64_t S, std::uint64_t seed) {
  Tensor t(DType::bf16, {1, S, kHeads, kHeadDim});
  std::vector<float> x(static_cast<std::size_t>(t.numel()));
  fill_normal(x, seed);
  for (std::size_t i = 0; i < x.size(); ++i) t.as<bf16>()[i] = to_bf16(x[i]);
  return t;
}

double seconds(std::chrono::steady_clock::duration d) { return std::chrono::duration<double>(d).count(); }

// Median seconds of planning and best of dense attention, taking turns.
struct Times {
  double plan = 0.0;
  double dense = 0.0;
};

Times measure(benchmark::State& state, const Method& method, const Tensor& q, const Tensor& k) {
  const Tensor v = random_bf16(q.view().size(1), 3);
  const Tensor out(DType::bf16, {1, q.view().size(1), kHeads, kHeadDim});
  const TilePlan dense = TilePlan::dense(plan_geometry(q, k, {}), DenseReason::requested);
  PlanSpec spec;
  spec.grid = {q.view().size(1) / 8, 2, 4};
  Workspace ws;
  std::vector<double> plans;
  double best = 1e30;
  const auto run_dense = [&] {
    const auto start = std::chrono::steady_clock::now();
    attend(dense, q, k, v, out, {}, ws);
    best = std::min(best, seconds(std::chrono::steady_clock::now() - start));
  };
  for (auto _ : state) {
    const Workspace::Scope scope(ws);
    const auto start = std::chrono::steady_clock::now();
    const TilePlan plan = make_plan(q, k, spec, method, ws);
    plans.push_back(seconds(std::chrono::steady_clock::now() - start));
    benchmark::DoNotOptimize(plan.tiles(Tier::refine, 0).data());
    state.PauseTiming();
    if (plans.size() <= kDenseRuns) run_dense();
    state.ResumeTiming();
  }
  std::ranges::nth_element(plans, plans.begin() + static_cast<std::ptrdiff_t>(plans.size() / 2));
  return {plans[plans.size() / 2], best};
}

void planning(benchmark::State& state, const Method& method) {
  const std::int64_t S = state.range(0);
  const Times times = measure(state, method, random_bf16(S, 1), random_bf16(S, 2));
  state.counters["ms_per_head"] = times.plan * 1e3 / kHeads;
  state.counters["dense_ms_per_head"] = times.dense * 1e3 / kHeads;
  state.counters["percent_of_dense"] = 100.0 * times.plan / times.dense;
}

// One benchmark per method that plans cheaply, with its defaults.
template <std::size_t... I>
void register_all(std::index_sequence<I...>) {
  const auto add = []<class Options>(const Options& options) {
    if constexpr (!std::is_same_v<Options, Oracle> && !std::is_same_v<Options, FixedPlan>) {
      if (!selects_tiles(options)) return;
      benchmark::RegisterBenchmark((std::string("Planning/") + Options::kName).c_str(), planning, Method(options))
          ->Arg(4752)
          ->Arg(8192)
          ->Arg(32760)
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
    }
  };
  (add(std::variant_alternative_t<I, Method>{}), ...);
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) {
  winnow::register_all(std::make_index_sequence<std::variant_size_v<winnow::Method>>{});
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
