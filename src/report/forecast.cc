#include "report/forecast.h"

#include <algorithm>
#include <optional>

#include "run/static_plan.h"
#include "winnow/error.h"

namespace winnow::report {

namespace {

double total_flops(const Estimate& estimate) { return estimate.attention_flops + estimate.linear_flops; }

std::optional<Estimate> try_estimate(const Engine& engine, const GenerateOptions& options) {
  try {
    return engine.estimate(options);
  } catch (const Error&) {
    return {};  // not a size that this model can have
  }
}

// Halves frames, height or width in turn as long as the model accepts the result.
GenerateOptions shrink(const Engine& engine, GenerateOptions options, double max_step_flops) {
  for (;;) {
    const Estimate now = engine.estimate(options);
    if (total_flops(now) / options.steps <= max_step_flops) return options;
    GenerateOptions best = options;
    double best_flops = total_flops(now);
    const auto consider = [&](std::int64_t width, std::int64_t height, std::int64_t frames) {
      GenerateOptions smaller = options;
      smaller.width = width;
      smaller.height = height;
      smaller.frames = frames;
      const std::optional<Estimate> estimate = try_estimate(engine, smaller);
      if (!estimate || total_flops(*estimate) >= best_flops) return;
      best = smaller;
      best_flops = total_flops(*estimate);
    };
    consider(now.width, now.height, (now.frames - 1) / 2 + 1);
    consider(now.width, now.height / 2, now.frames);
    consider(now.width / 2, now.height, now.frames);
    if (best_flops >= total_flops(now)) return options;
    options = best;
  }
}

}  // namespace

Forecast forecast(Engine& engine, const GenerateOptions& options, double max_step_flops) {
  const Estimate full = engine.estimate(options);
  GenerateOptions probe = options;
  probe.width = full.width;
  probe.height = full.height;
  probe.frames = full.frames;
  probe.steps = std::min(options.steps, 2);
  probe.latents.clear();  // they have the full size
  probe.cache = {};       // has nothing to reuse in so few steps; what it saves depends on content
  std::optional<double> plan_density;
  if (const auto* fixed = std::get_if<FixedPlan>(&options.attention.method)) {  // fits the full size only: the probe runs dense
    plan_density = StaticPlan(*fixed).density(full.tokens);
    probe.attention.method = Dense{};
  }
  probe = shrink(engine, probe, max_step_flops);
  const Estimate small = engine.estimate(probe);
  const GenerateReport report = engine.generate(probe).report;

  Forecast result;
  result.probe_width = small.width;
  result.probe_height = small.height;
  result.probe_frames = small.frames;
  result.probe_seconds = report.steps.empty() ? report.seconds / probe.steps : report.steps.back().seconds;
  result.probe_density = plan_density.value_or(report.attention.density());
  result.probe_flops = total_flops(small) / probe.steps;
  // Everything that is not self-attention grows with the number of tokens, as linear layers do.
  const double attention = report.attention.plan_seconds + report.attention.attend_seconds;
  const double attention_share = report.seconds > 0.0 ? std::clamp(attention / report.seconds, 0.0, 1.0) : 0.0;
  const double attention_ratio = full.attention_flops / small.attention_flops * probe.steps * plan_density.value_or(1.0);
  const double linear_ratio = full.linear_flops / small.linear_flops * probe.steps;
  result.seconds = result.probe_seconds * (attention_share * attention_ratio + (1.0 - attention_share) * linear_ratio);
  return result;
}

}  // namespace winnow::report
