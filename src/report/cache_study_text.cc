// A cache study as JSON and back, as Markdown and as panels of the plot.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "device/cpu/features.h"
#include "report/cache_study.h"
#include "report/json_number.h"
#include "report/machine.h"
#include "report/markdown.h"
#include "winnow/error.h"
#include "winnow/threads.h"
#include "winnow/version.h"

namespace winnow::report {

namespace {

using Json = nlohmann::ordered_json;

const char* guidance_name(bool guidance) { return guidance ? "on" : "off"; }

Json run_record(const CacheRun& run) {
  Json json = {{"setting", run.setting},   {"guidance", guidance_name(run.guidance)},
               {"prompt", run.prompt},     {"seed", run.seed},
               {"forwards", run.forwards}, {"forwards_dense", run.forwards_dense},
               {"seconds", run.seconds},   {"dense_seconds", run.dense_seconds}};
  if (run.seconds > 0.0) json["speedup"] = run.dense_seconds / run.seconds;
  put(json, "psnr_db", run.psnr_db);
  put(json, "ssim", run.ssim);
  json["hits_high"] = run.hits_high;
  json["hits_low"] = run.hits_low;
  return json;
}

CacheRun read_run(const nlohmann::json& json) {
  CacheRun run;
  run.setting = json.at("setting").get<std::string>();
  run.guidance = json.at("guidance") == "on";
  run.prompt = json.at("prompt").get<std::string>();
  run.seed = json.at("seed").get<std::uint64_t>();
  run.forwards = json.at("forwards").get<std::int64_t>();
  run.forwards_dense = json.at("forwards_dense").get<std::int64_t>();
  run.seconds = json.at("seconds").get<double>();
  run.dense_seconds = json.at("dense_seconds").get<double>();
  if (json.contains("psnr_db")) run.psnr_db = json.at("psnr_db").get<double>();
  if (json.contains("ssim")) run.ssim = json.at("ssim").get<double>();
  run.hits_high = json.at("hits_high").get<std::int64_t>();
  run.hits_low = json.at("hits_low").get<std::int64_t>();
  return run;
}

Json summary_record(const CacheSummary& s) {
  Json json = {{"setting", s.setting},  {"guidance", guidance_name(s.guidance)},
               {"prompts", s.prompts},  {"forwards_ratio", s.forwards_ratio},
               {"speedup", s.speedup},  {"hits_high", s.hits_high},
               {"hits_low", s.hits_low}};
  put(json, "psnr_db", s.psnr_db);
  put(json, "worst_psnr_db", s.worst_psnr_db);
  put(json, "ssim", s.ssim);
  return json;
}

std::vector<std::string> labels_of(const CacheStudy& study, const std::string& series) {
  std::vector<std::string> labels;
  for (const CacheSetting& setting : study.settings) {
    if (setting.series == series) labels.push_back(setting.label);
  }
  return labels;
}

std::string guidance_table(const CacheStudy& study, bool guidance) {
  const std::vector<CacheSummary> summaries = summarise_caches(study);
  const std::vector<std::string> uniform = labels_of(study, "uniform");
  std::vector<Cells> rows;
  for (const CacheSummary& s : summaries) {
    if (s.guidance != guidance) continue;
    const bool is_uniform = std::find(uniform.begin(), uniform.end(), s.setting) != uniform.end();
    const auto beside = is_uniform ? std::optional<double>() : psnr_at(summaries, uniform, guidance, s.forwards_ratio);
    rows.push_back({s.setting, fixed(s.forwards_ratio, 2), fixed(s.speedup, 2), fixed(s.psnr_db, 1), fixed(s.worst_psnr_db, 1),
                    fixed(s.ssim, 4), fixed(s.hits_high, 1), fixed(s.hits_low, 1), fixed(beside, 1), std::to_string(s.prompts)});
  }
  return table(
      {"setting", "fewer forwards x", "video x", "PSNR dB", "worst", "SSIM", "hits high", "hits low", "uniform's PSNR there", "prompts"},
      rows);
}

}  // namespace

std::string to_json(const CacheStudy& study, const StudyInfo& info) {
  Json json;
  json["runs"] = Json::array();
  for (const CacheRun& run : study.runs) json["runs"].push_back(run_record(run));
  json["summary"] = Json::array();
  for (const CacheSummary& summary : summarise_caches(study)) json["summary"].push_back(summary_record(summary));
  json["settings"] = Json::object();
  for (const CacheSetting& setting : study.settings) json["settings"][setting.label] = Json::parse(to_json(setting.cache));
  json["generation"] = Json::parse(generation_text(info));
  json["machine"] = {{"cpu", cpu_name()}, {"isa", isa_names()}, {"threads", num_threads()}};
  json["program"] = info.program;
  json["version"] = version();
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

int take_over_caches(CacheStudy& study, const StudyInfo& info, std::string_view text, const std::string& name) {
  const nlohmann::json json = parse_json(text, name, "compare-cache");
  int taken = 0;
  try {
    if (json.at("program") != info.program || json.at("generation") != nlohmann::json::parse(generation_text(info))) return 0;
    for (const nlohmann::json& record : json.at("runs")) {
      const std::string label = record.at("setting").get<std::string>();
      for (const CacheSetting& setting : study.settings) {
        if (setting.label != label || json.at("settings").at(label) != nlohmann::json::parse(to_json(setting.cache))) continue;
        study.runs.push_back(read_run(record));
        ++taken;
      }
    }
  } catch (const nlohmann::json::exception&) {
    throw Error("compare-cache", name + ": expected a report of winnow compare-cache");
  }
  return taken;
}

std::string to_markdown(const CacheStudy& study) {
  return "With guidance:\n\n" + block("cache_guided", guidance_table(study, true)) + "\nWithout guidance:\n\n" +
         block("cache_unguided", guidance_table(study, false));
}

std::vector<media::PlotPanel> plot_panels(const CacheStudy& study) {
  const std::vector<CacheSummary> summaries = summarise_caches(study);
  std::vector<media::PlotPanel> panels;
  for (const bool guidance : {true, false}) {
    media::PlotPanel panel;
    panel.title = guidance ? "with guidance" : "without guidance";
    panel.x_label = "forwards without a cache / forwards computed";
    panel.y_label = "PSNR against no cache, dB";
    for (const CacheSetting& setting : study.settings) {
      const auto has = [&](const media::PlotSeries& series) { return series.name == setting.series; };
      if (std::none_of(panel.series.begin(), panel.series.end(), has)) panel.series.push_back({setting.series, {}});
      media::PlotSeries& series = *std::find_if(panel.series.begin(), panel.series.end(), has);
      for (const CacheSummary& s : summaries) {
        if (s.setting == setting.label && s.guidance == guidance && s.psnr_db) series.points.push_back({s.forwards_ratio, *s.psnr_db});
      }
    }
    for (media::PlotSeries& series : panel.series) std::sort(series.points.begin(), series.points.end());
    panels.push_back(std::move(panel));
  }
  return panels;
}

}  // namespace winnow::report
