#include "report/cache_study.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/json.h"
#include "report/setting_check.h"
#include "winnow/error.h"

namespace winnow::report {

namespace {

constexpr const char* kOperation = "compare-cache";

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

CacheSetting read_setting(const nlohmann::json& item, const std::string& where) {
  if (!item.is_object() || item.size() != 2 || !item.contains("label") || !item.at("label").is_string() || !item.contains("cache")) {
    throw Error(kOperation, where + R"(: expected {"label":"name","cache":{...}}, got )" + item.dump(-1, ' ', true).substr(0, 80));
  }
  CacheSetting setting;
  setting.label = item.at("label").get<std::string>();
  check_label(setting.label, where, kOperation);
  setting.series = setting.label.substr(0, setting.label.rfind('-'));
  setting.cache = parse_step_cache_config(item.at("cache").dump());
  return setting;
}

CacheRun cache_run(const Outcome& outcome, const Outcome& dense) {
  const CacheTotals& totals = outcome.report.cache;
  CacheRun run;
  run.setting = outcome.setting.label;
  run.forwards_dense = totals.forwards();
  run.forwards = totals.forwards() - totals.reused();
  run.seconds = outcome.seconds;
  run.dense_seconds = dense.seconds;
  run.hits_high = totals.experts[0].reused();
  run.hits_low = totals.experts[1].reused();
  if (outcome.quality) {
    run.psnr_db = outcome.quality->psnr_db;
    run.ssim = outcome.quality->ssim;
  }
  return run;
}

// One prompt under one guidance: what is left to do of it.
struct Job {
  std::size_t prompt = 0;
  bool guidance = true;
  std::vector<Setting> settings;  // without a cache first
};

std::vector<Job> jobs_left(const CacheStudy& study, const VideoOptions& options) {
  std::vector<Job> jobs;
  for (std::size_t p = 0; p < options.prompts.size(); ++p) {
    for (const bool guidance : {true, false}) {
      Job job{p, guidance, {{.label = "no cache", .attention = {}}}};
      for (const CacheSetting& setting : study.settings) {
        const bool done = std::any_of(study.runs.begin(), study.runs.end(), [&](const CacheRun& run) {
          return run.setting == setting.label && run.guidance == guidance && run.prompt == options.prompts[p] &&
                 run.seed == options.first_seed + p;
        });
        if (!done) job.settings.push_back({.label = setting.label, .attention = {}, .cache = setting.cache});
      }
      if (job.settings.size() > 1) jobs.push_back(std::move(job));
    }
  }
  return jobs;
}

std::optional<double> mean(const std::vector<double>& values) {
  if (values.empty()) return {};
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

CacheSummary summarise(const std::string& setting, bool guidance, const std::vector<const CacheRun*>& runs) {
  CacheSummary summary;
  summary.setting = setting;
  summary.guidance = guidance;
  summary.prompts = static_cast<int>(runs.size());
  double computed = 0.0;
  double dense = 0.0;
  std::vector<double> speedups;
  std::vector<double> psnr;
  std::vector<double> ssim;
  for (const CacheRun* run : runs) {
    computed += static_cast<double>(run->forwards);
    dense += static_cast<double>(run->forwards_dense);
    speedups.push_back(run->seconds > 0.0 ? run->dense_seconds / run->seconds : 0.0);
    summary.hits_high += static_cast<double>(run->hits_high) / static_cast<double>(runs.size());
    summary.hits_low += static_cast<double>(run->hits_low) / static_cast<double>(runs.size());
    if (run->psnr_db) psnr.push_back(*run->psnr_db);
    if (run->ssim) ssim.push_back(*run->ssim);
  }
  summary.forwards_ratio = computed > 0.0 ? dense / computed : 0.0;
  summary.speedup = median(speedups);
  summary.psnr_db = mean(psnr);
  summary.ssim = mean(ssim);
  if (!psnr.empty()) summary.worst_psnr_db = *std::min_element(psnr.begin(), psnr.end());
  return summary;
}

}  // namespace

std::vector<CacheSetting> read_cache_settings(const std::string& path) {
  const nlohmann::json json = parse_json(read_text_file(path, kOperation, std::size_t{1} << 20U), path, kOperation);
  if (!json.is_object() || json.size() != 1 || !json.contains("settings") || !json.at("settings").is_array() ||
      json.at("settings").empty()) {
    throw Error(kOperation, path + R"(: expected {"settings":[...]})");
  }
  std::vector<CacheSetting> settings;
  std::set<std::string> labels;
  for (const nlohmann::json& item : json.at("settings")) {
    settings.push_back(read_setting(item, path + ": settings[" + std::to_string(settings.size()) + "]"));
    if (!settings.back().cache.on()) throw Error(kOperation, path + ": " + settings.back().label + ": expected a cache, got off");
    if (!labels.insert(settings.back().label).second)
      throw Error(kOperation, path + ": the label " + settings.back().label + " is there twice");
  }
  return settings;
}

void measure_caches(CacheStudy& study, const Generate& generate, const VideoOptions& options, const StudyProgress& progress) {
  const std::vector<Job> jobs = jobs_left(study, options);
  StudyEvent event = {"videos", {}, 0, 0};
  for (const Job& job : jobs) event.total += static_cast<int>(job.settings.size()) * options.repeat;
  const auto tell = [&] {
    if (progress && !progress(event)) throw Cancelled(kOperation);
  };
  for (const Job& job : jobs) {
    GenerateOptions run = options.generate;
    run.prompt = options.prompts[job.prompt];
    run.seed = options.first_seed + job.prompt;
    if (!job.guidance) {
      run.guidance_scale = 1.0;
      run.guidance_scale_2.reset();
    }
    run.progress = [&](const ProgressEvent&) { return !progress || progress(event); };
    const int begun = event.done;
    const auto run_begins = [&](const Setting& setting, int index, int /*num_runs*/) {
      event.done = begun + index;
      event.what = "prompt " + std::to_string(job.prompt + 1) + "/" + std::to_string(options.prompts.size()) +
                   (job.guidance ? "  guided  " : "  unguided  ") + setting.label;
      tell();
    };
    const Comparison comparison = compare(generate, run, job.settings, options.repeat, run_begins);
    for (std::size_t i = 1; i < comparison.outcomes.size(); ++i) {
      CacheRun row = cache_run(comparison.outcomes[i], comparison.outcomes[0]);
      row.guidance = job.guidance;
      row.prompt = run.prompt;
      row.seed = run.seed;
      study.runs.push_back(std::move(row));
    }
    event.done = begun + static_cast<int>(job.settings.size()) * options.repeat;
    if (options.prompt_done) options.prompt_done();
  }
}

std::vector<CacheSummary> summarise_caches(const CacheStudy& study) {
  std::vector<CacheSummary> summaries;
  for (const bool guidance : {true, false}) {
    for (const CacheSetting& setting : study.settings) {
      std::vector<const CacheRun*> runs;
      for (const CacheRun& run : study.runs) {
        if (run.setting == setting.label && run.guidance == guidance) runs.push_back(&run);
      }
      if (!runs.empty()) summaries.push_back(summarise(setting.label, guidance, runs));
    }
  }
  return summaries;
}

std::optional<double> psnr_at(const std::vector<CacheSummary>& summaries, const std::vector<std::string>& settings, bool guidance,
                              double forwards_ratio) {
  std::vector<std::pair<double, double>> points;  // forwards_ratio, PSNR
  for (const CacheSummary& s : summaries) {
    const bool listed = std::find(settings.begin(), settings.end(), s.setting) != settings.end();
    if (listed && s.guidance == guidance && s.psnr_db) points.emplace_back(s.forwards_ratio, *s.psnr_db);
  }
  std::sort(points.begin(), points.end());
  for (std::size_t i = 0; i + 1 < points.size(); ++i) {
    const auto [x0, y0] = points[i];
    const auto [x1, y1] = points[i + 1];
    if (forwards_ratio < x0 || forwards_ratio > x1) continue;
    return x1 > x0 ? y0 + (y1 - y0) * (forwards_ratio - x0) / (x1 - x0) : std::max(y0, y1);
  }
  return {};
}

}  // namespace winnow::report
