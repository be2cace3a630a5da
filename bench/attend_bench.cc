// Attention on the CPU: rates, and the ratios that say whether they are good.
//   of_peak   FLOP/s over the register-only peak of the same hardware; 4 S^2 D FLOP for a dense head
//   of_dense  time over that of the dense plan at the same shape without a skip test
// Peak, dense plan and the case itself take turns, because clocks drift under load, and the best run of each counts: other
// processes only ever slow a run down. The time that Google Benchmark prints is the mean.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/random.h"
#include "core/safetensors.h"
#include "exec/peak.h"
#include "winnow/attend.h"
#include "winnow/plan.h"
#include "winnow/threads.h"
#include "winnow/workspace.h"

namespace winnow {
namespace {

using Clock = std::chrono::steady_clock;

struct Inputs {
  Inputs(DType dtype, std::int64_t S, std::int64_t H, std::int64_t D)
      : q(dtype, {1, S, H, D}), k(dtype, {1, S, H, D}), v(dtype, {1, S, H, D}), out(dtype, {1, S, H, D}) {
    geometry.H = H;
    geometry.Sq = geometry.Sk = S;
    std::uint64_t stream = 0;
    for (const Tensor* t : {&q, &k, &v}) {
      Tensor x(DType::f32, {1, S, H, D});
      fill_normal({x.as<float>(), static_cast<std::size_t>(x.numel())}, 1, stream++);
      convert(x, *t);
    }
  }
  Tensor q, k, v, out;
  PlanGeometry geometry;
  Workspace ws;

  double seconds(const TilePlan& plan, const AttendOptions& options) {
    const auto begin = Clock::now();
    attend(plan, q, k, v, out, options, ws);
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }
};

// Rows whose numbers of tiles differ by at most one, so that their mean is the density asked for.
TilePlan random_plan(const PlanGeometry& g, double density, Skipped skipped) {
  std::mt19937 rng(1);
  std::vector<std::vector<std::int32_t>> rows(static_cast<std::size_t>(g.rows()));
  const double per_row = density * static_cast<double>(g.Gk());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(g.Gk()));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
    std::shuffle(all.begin(), all.end(), rng);
    const double before = std::floor(per_row * static_cast<double>(r));
    all.resize(std::max<std::size_t>(1, static_cast<std::size_t>(per_row * static_cast<double>(r + 1) - before)));
    std::sort(all.begin(), all.end());
    rows[r] = all;
  }
  return PlanBuilder::from_rows(g, skipped, rows);
}

struct Case {
  std::string executor;
  DType dtype;
  std::int64_t S;
  std::int64_t H;
  std::int64_t D;
  double density = 1.0;  // 1: the dense plan
  Skipped skipped = Skipped::drop;
  float skip_threshold_log2 = -std::numeric_limits<float>::infinity();
  int threads = 1;
};

void run(benchmark::State& state, const Case& c) {
  set_num_threads(c.threads);
  Inputs in(c.dtype, c.S, c.H, c.D);
  const TilePlan dense = TilePlan::dense(in.geometry, DenseReason::requested);
  const TilePlan plan =
      c.density < 1.0 ? random_plan(in.geometry, c.density, c.skipped) : TilePlan::dense(in.geometry, DenseReason::requested);
  AttendOptions options;
  options.executor = c.executor;
  options.skip_threshold_log2 = c.skip_threshold_log2;
  AttendOptions plain = options;
  plain.skip_threshold_log2 = -std::numeric_limits<float>::infinity();
  in.seconds(plan, options);
  double best = 1e9;
  double reference = 1e9;
  double peak = 0.0;
  for (auto _ : state) {
    peak = std::max(peak, c.executor == "amx_bf16" ? measure_amx_bf16_flops() : measure_avx512_f32_flops());
    reference = std::min(reference, in.seconds(dense, plain));
    const double seconds = in.seconds(plan, options);
    best = std::min(best, seconds);
    state.SetIterationTime(seconds);
  }
  const double flop = 4.0 * static_cast<double>(c.S) * static_cast<double>(c.S) * static_cast<double>(c.D * c.H) * plan.density();
  state.counters["GFLOP/s"] = flop / best / 1e9;
  if (peak > 0.0) state.counters["of_peak"] = flop / best / peak;  // of one thread
  state.counters["of_dense"] = best / reference;
  state.counters["density"] = plan.density();
  state.counters["best_ms"] = best * 1e3;
}

void run_peak(benchmark::State& state, double (*measure)()) {
  double best = 0.0;
  for (auto _ : state) best = std::max(best, measure());
  state.counters["GFLOP/s"] = best / 1e9;
}

void add(const std::string& name, const Case& c) {
  for (const ExecutorInfo& info : executors()) {
    if (info.name == c.executor && !info.available) return;
  }
  const std::string full = c.executor + "/" + dtype_name(c.dtype) + "/S" + std::to_string(c.S) + "/D" + std::to_string(c.D) + "/" + name;
  benchmark::RegisterBenchmark(full.c_str(), [c](benchmark::State& state) { run(state, c); })
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond)
      ->Iterations(std::max<std::int64_t>(3, 20 * 4752 * 4752 / (c.S * c.S) / (c.executor == "amx_bf16" ? 1 : 10)));
}

void add_all() {
  benchmark::RegisterBenchmark("peak/amx_bf16", run_peak, measure_amx_bf16_flops)->Iterations(3);
  benchmark::RegisterBenchmark("peak/avx512_f32", run_peak, measure_avx512_f32_flops)->Iterations(3);
  for (const std::int64_t S : {4752, 8192}) {
    const Case amx = {"amx_bf16", DType::bf16, S, 1, 128};
    const auto with = [&](auto change) {
      Case c = amx;
      change(c);
      return c;
    };
    add("dense", amx);
    add("dense_2_threads", with([](Case& c) { c.threads = 2; }));
    add("density_25", with([](Case& c) { c.density = 0.25; }));
    add("density_10", with([](Case& c) { c.density = 0.10; }));
    add("density_10_means", with([](Case& c) {
          c.density = 0.10;
          c.skipped = Skipped::mean;
        }));
    add("skip_test", with([](Case& c) { c.skip_threshold_log2 = -1e30F; }));
  }
  add("dense", {"amx_bf16", DType::bf16, 4752, 1, 64});
  for (const char* executor : {"avx512_f32", "avx2_f32", "scalar_f32"}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      add("dense", {executor, dtype, 2048, 1, 128});
      add("density_25", {executor, dtype, 2048, 1, 128, 0.25});
    }
  }
  add("dense", {"avx512_f32", DType::f32, 4752, 1, 128});
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) {
  winnow::add_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
