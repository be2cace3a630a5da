// Many step-cache settings side by side on whole videos, with and without guidance: how many forwards does each save, and what does
// it cost? Every prompt runs without a cache beside them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "media/plot.h"
#include "report/comparison.h"
#include "report/study.h"
#include "report/study_text.h"
#include "winnow/step_cache.h"

namespace winnow::report {

struct CacheSetting {
  std::string label;   // "uniform-0.06"
  std::string series;  // settings of one line in the picture: the label up to its last '-'
  StepCacheConfig cache;
};
// {"settings":[{"label":"uniform-0.06","cache":{"method":"first_block",...}}]}. Throws Error, also if a label is there twice.
std::vector<CacheSetting> read_cache_settings(const std::string& path);

// One generation; the one without a cache of the same prompt and guidance ran beside it.
struct CacheRun {
  std::string setting;
  bool guidance = true;
  std::string prompt;
  std::uint64_t seed = 0;
  std::int64_t forwards = 0;  // computed
  std::int64_t forwards_dense = 0;
  double seconds = 0.0, dense_seconds = 0.0;
  std::optional<double> psnr_db, ssim;
  std::int64_t hits_high = 0, hits_low = 0;
};

struct CacheStudy {
  std::vector<CacheSetting> settings;
  std::vector<CacheRun> runs;
};

// Runs what `study.runs` does not hold yet and adds it. options.generate's cache and attention are replaced; without guidance its
// guidance_scale is 1. Throws Error, Cancelled.
void measure_caches(CacheStudy& study, const Generate& generate, const VideoOptions& options, const StudyProgress& progress);

// Of one setting and guidance, over all prompts.
struct CacheSummary {
  std::string setting;
  bool guidance = true;
  int prompts = 0;
  double forwards_ratio = 1.0;  // forwards of all runs without a cache over those computed
  double speedup = 0.0;         // median
  std::optional<double> psnr_db, worst_psnr_db, ssim;
  double hits_high = 0.0, hits_low = 0.0;  // per run
};
std::vector<CacheSummary> summarise_caches(const CacheStudy& study);

// PSNR that the settings of a series have at this forwards_ratio, between the two that are next to it; unset outside their range.
std::optional<double> psnr_at(const std::vector<CacheSummary>& summaries, const std::vector<std::string>& settings, bool guidance,
                              double forwards_ratio);

// {"runs":[{"setting","guidance","prompt","forwards","forwards_dense","seconds","speedup","psnr_db","hits_high","hits_low",...}],
//  "summary":[...], ...}
std::string to_json(const CacheStudy& study, const StudyInfo& info);
// Adds the runs of an earlier report that these settings and `info` would give again. Returns how many.
int take_over_caches(CacheStudy& study, const StudyInfo& info, std::string_view json, const std::string& name);
// Tables "cache_guided" and "cache_unguided".
std::string to_markdown(const CacheStudy& study);
std::vector<media::PlotPanel> plot_panels(const CacheStudy& study);

}  // namespace winnow::report
