#include "report/comparison.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "core/env.h"
#include "winnow/error.h"
#include "winnow/metrics.h"

namespace winnow::report {

namespace {

constexpr std::int64_t kSsimWindow = 11;

void run_once(const Generate& generate, GenerateOptions& options, Outcome& outcome) {
  options.attention = outcome.setting.attention;
  options.cache = outcome.setting.cache;
  GenerateResult result = generate(options);
  const bool first = outcome.all_seconds.empty();
  outcome.all_seconds.push_back(result.report.seconds);
  if (first || result.report.seconds < outcome.seconds) {
    outcome.seconds = result.report.seconds;
    outcome.report = std::move(result.report);
  }
  if (first) {
    outcome.latents = std::move(result.latents);
    outcome.frames = std::move(result.frames);
  }
}

Quality measure(const TensorView& value, const TensorView& reference) {
  const bool fits_window = value.size(1) >= kSsimWindow && value.size(2) >= kSsimWindow;
  Quality quality;
  quality.psnr_db = psnr(value, reference);
  if (fits_window) quality.ssim = ssim(value, reference);
  for (std::int64_t f = 0; f < value.size(0); ++f) {
    const TensorView a = value.slice(0, f, f + 1);
    const TensorView b = reference.slice(0, f, f + 1);
    quality.psnr_per_frame.push_back(psnr(a, b));
    if (fits_window) quality.ssim_per_frame.push_back(ssim(a, b));
  }
  return quality;
}

void measure_against_dense(Comparison& comparison) {
  if (!comparison.dense) return;
  const Outcome& dense = comparison.outcomes[*comparison.dense];
  for (Outcome& outcome : comparison.outcomes) {
    if (&outcome == &dense) continue;
    if (outcome.seconds > 0.0) outcome.speedup = dense.seconds / outcome.seconds;
    if (!outcome.latents.empty()) outcome.latents_rel_l2 = rel_l2(outcome.latents, dense.latents);
    if (!outcome.frames.empty()) outcome.quality = measure(outcome.frames, dense.frames);
  }
}

}  // namespace

bool is_dense(const Setting& setting) {
  return std::holds_alternative<Dense>(setting.attention.method) && !setting.cache.on() && !setting.is_floor;
}

std::optional<double> Comparison::attention_bound() const {
  if (!dense) return {};
  const double share = outcomes[*dense].attention_share();
  if (share >= 1.0) return {};
  return 1.0 / (1.0 - share);
}

Comparison compare(const Generate& generate, const GenerateOptions& options, const std::vector<Setting>& settings, int repeat,
                   const RunBegins& run_begins) {
  if (repeat < 1) throw Error("compare", "repeat: expected at least 1, got " + std::to_string(repeat));
  if (settings.empty()) throw Error("compare", "expected at least one attention setting, got none");
  Comparison comparison;
  int num_runs = 0;
  for (const Setting& setting : settings) {
    setting.attention.validate();
    setting.cache.validate();
    if (!comparison.dense && is_dense(setting)) comparison.dense = comparison.outcomes.size();
    Outcome& outcome = comparison.outcomes.emplace_back();
    outcome.setting = setting;
    num_runs += setting.is_floor ? 1 : repeat;
  }
  GenerateOptions one = options;
  int run = 0;
  for (int r = 0; r < repeat; ++r) {
    for (Outcome& outcome : comparison.outcomes) {
      if (r > 0 && outcome.setting.is_floor) continue;
      if (run_begins) run_begins(outcome.setting, run, num_runs);
      run_once(generate, one, outcome);
      ++run;
    }
  }
  measure_against_dense(comparison);
  return comparison;
}

Comparison compare(Engine& engine, const GenerateOptions& options, const std::vector<Setting>& settings, int repeat,
                   const RunBegins& run_begins) {
  return compare([&engine](const GenerateOptions& one) { return engine.generate(one); }, options, settings, repeat, run_begins);
}

std::optional<AttentionConfig> dense_floor(DType dtype) {
  const std::string forced = env::executor();
  std::string used;
  for (const ExecutorInfo& info : executors()) {
    const bool takes = std::find(info.dtypes.begin(), info.dtypes.end(), dtype) != info.dtypes.end();
    if (info.device != Device::cpu || !info.available || !takes) continue;
    if (used.empty() && (forced.empty() || info.name == forced)) {
      used = info.isa;
    } else if (info.isa != "any" && info.isa != used && (forced.empty() || info.name != forced)) {
      AttentionConfig config;
      config.executor = info.name;
      return config;
    }
  }
  return {};
}

std::string describe(const Outcome& outcome) {
  std::array<char, 80> text{};
  const auto add = [&](const char* format, double value) {
    std::snprintf(text.data(), text.size(), format, value);
    return std::string(text.data());
  };
  std::string line = outcome.setting.label;
  if (outcome.setting.is_floor) line += " (dense, " + outcome.setting.attention.executor + ")";
  line += add("  density %.3f", outcome.report.attention.density());
  line += outcome.speedup ? add("  %.2fx", *outcome.speedup) : add("  %.1f s", outcome.seconds);
  if (outcome.quality) line += add("  %.1f dB", outcome.quality->psnr_db);
  if (outcome.quality && outcome.quality->ssim) line += add("  SSIM %.4f", *outcome.quality->ssim);
  const CacheTotals& cache = outcome.report.cache;
  if (cache.forwards() > 0) line += "  " + std::to_string(cache.reused()) + " of " + std::to_string(cache.forwards()) + " forwards reused";
  return line;
}

}  // namespace winnow::report
