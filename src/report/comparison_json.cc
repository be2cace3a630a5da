// The comparison as JSON.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "device/cpu/features.h"
#include "report/comparison.h"
#include "report/json_number.h"
#include "report/machine.h"
#include "winnow/threads.h"
#include "winnow/version.h"

namespace winnow::report {

namespace {

using Json = nlohmann::ordered_json;

const char* precision_name(Precision precision) { return precision == Precision::bf16 ? "bf16" : "f32"; }

Json dense_reasons(const SessionTotals& totals) {
  Json json = Json::object();
  for (int i = 0; i < kNumDenseReasons; ++i) {
    const std::int64_t count = totals.by_reason[static_cast<std::size_t>(i)];
    if (count == 0) continue;
    json[i == 0 ? "sparse" : dense_reason_name(static_cast<DenseReason>(i))] = count;
  }
  return json;
}

Json step_records(const GenerateReport& report) {
  Json json = Json::array();
  for (const StepReport& step : report.steps) {
    json.push_back(
        {{"step", step.step}, {"expert", step.expert}, {"timestep", step.timestep}, {"density", step.density}, {"seconds", step.seconds}});
    if (step.reused > 0) json.back()["forwards_reused"] = step.reused;
  }
  return json;
}

// Did it ever hit, and if not, why?
Json cache_record(const StepCacheConfig& config, const CacheTotals& totals) {
  Json json = {{"setting", to_json(config)},
               {"forwards", totals.forwards()},
               {"forwards_computed", totals.forwards() - totals.reused()},
               {"hits_high", totals.experts[0].reused()},
               {"hits_low", totals.experts[1].reused()},
               {"bytes", totals.peak_bytes}};
  for (std::size_t expert = 0; expert < totals.experts.size(); ++expert) {
    Json& reasons = json["reasons"][expert == 0 ? "high" : "low"] = Json::object();
    for (int i = 0; i < kNumCacheReasons; ++i) {
      const std::int64_t count = totals.experts[expert].by_reason[static_cast<std::size_t>(i)];
      if (count > 0) reasons[cache_reason_name(static_cast<CacheReason>(i))] = count;
    }
  }
  return json;
}

// Where the time of the fastest repetition went.
void put_times(Json& json, const Outcome& outcome) {
  if (*outcome.report.attention.executor != '\0') json["executor"] = outcome.report.attention.executor;
  json["all_seconds"] = outcome.all_seconds;
  json["attention_seconds"] = outcome.attention_seconds();
  json["plan_seconds"] = outcome.report.attention.plan_seconds;
  json["linear_seconds"] = outcome.report.linear_seconds;
  json["cross_attention_seconds"] = outcome.report.cross_attention_seconds;
  json["other_seconds"] = outcome.report.other_seconds;
  json["attention_share"] = outcome.attention_share();
  json["workspace_bytes"] = outcome.report.workspace_bytes;
  json["calls"] = dense_reasons(outcome.report.attention);
  if (outcome.setting.cache.on()) json["cache"] = cache_record(outcome.setting.cache, outcome.report.cache);
  json["steps_run"] = step_records(outcome.report);
}

Json run_record(const Outcome& outcome) {
  Json json;
  json["method"] = outcome.setting.attention.method_name();
  json["setting"] = setting_text(outcome.setting.attention);
  json["label"] = outcome.setting.label;
  if (outcome.setting.is_floor) json["floor"] = true;
  json["seconds"] = outcome.seconds;
  if (outcome.speedup) put(json, "speedup", *outcome.speedup);
  json["density"] = outcome.report.attention.density();
  if (outcome.quality) {
    put(json, "psnr_db", outcome.quality->psnr_db);
    if (outcome.quality->ssim) put(json, "ssim", *outcome.quality->ssim);
    json["per_frame"] = {{"psnr_db", outcome.quality->psnr_per_frame}, {"ssim", outcome.quality->ssim_per_frame}};
  }
  if (outcome.latents_rel_l2) put(json, "latents_rel_l2", *outcome.latents_rel_l2);
  put_times(json, outcome);
  return json;
}

Json machine_record() { return {{"cpu", cpu_name()}, {"isa", isa_names()}, {"threads", num_threads()}}; }

}  // namespace

std::pair<std::string, std::string> noise_source(const GenerateOptions& options) {
  if (!options.latents.empty()) return {"latents", options.latents};
  return {"seed", std::to_string(options.seed)};
}

std::string setting_text(const AttentionConfig& config) {
  Json json = Json::parse(to_json(config));
  for (auto it = json.begin(); it != json.end();) it = it->empty() || *it == "" ? json.erase(it) : std::next(it);  // null is empty
  return json.dump();
}

std::string to_json(const Comparison& comparison, const GenerateOptions& options, const RunInfo& info) {
  Json json;
  json["model"] = info.model;
  json["prompt"] = options.prompt;
  if (!options.prompt_embeds.empty()) json["prompt_embeds"] = options.prompt_embeds;
  if (!options.negative_prompt.empty()) json["negative_prompt"] = options.negative_prompt;
  if (options.latents.empty()) {
    json["seed"] = options.seed;
  } else {
    json["latents"] = options.latents;
  }
  json["steps"] = options.steps;
  if (options.solver) json["solver"] = *options.solver == Solver::unipc ? "unipc" : "euler";
  json["sigma_mode"] = options.sigma_mode == SigmaMode::wan ? "wan" : "diffusers";
  if (options.flow_shift) json["flow_shift"] = *options.flow_shift;
  if (options.boundary_ratio) json["boundary_ratio"] = *options.boundary_ratio;
  for (const Outcome& outcome : comparison.outcomes) {
    if (outcome.frames.empty()) continue;
    const TensorView frames = outcome.frames;
    json["frames"] = frames.size(0);
    json["height"] = frames.size(1);
    json["width"] = frames.size(2);
    break;
  }
  if (info.fps > 0) json["fps"] = info.fps;
  json["precision"] = precision_name(info.precision);
  json["guidance_scale"] = options.guidance_scale;
  if (options.guidance_scale_2) json["guidance_scale_2"] = *options.guidance_scale_2;
  if (options.guidance_until < 1.0F) json["guidance_until"] = options.guidance_until;
  if (!comparison.outcomes.empty()) json["high_noise_steps"] = comparison.outcomes.front().report.high_noise_steps;
  if (comparison.dense) {
    const Outcome& dense = comparison.outcomes[*comparison.dense];
    Json& record = json["dense"];
    record["seconds"] = dense.seconds;
    if (const auto bound = comparison.attention_bound()) record["attention_bound"] = *bound;
    put_times(record, dense);
  }
  json["runs"] = Json::array();
  for (std::size_t i = 0; i < comparison.outcomes.size(); ++i) {
    if (comparison.dense != i) json["runs"].push_back(run_record(comparison.outcomes[i]));
  }
  json["machine"] = machine_record();
  json["version"] = version();
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace winnow::report
