#include "report/study.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/json.h"
#include "report/fit.h"
#include "winnow/error.h"
#include "winnow/workspace.h"

namespace winnow::report {

namespace {

constexpr const char* kOperation = "compare";
// A density further from its target than this share of it is not the same density.
constexpr double kReached = 0.1;

void tell(const StudyProgress& progress, const StudyEvent& event) {
  if (progress && !progress(event)) throw Cancelled(kOperation);
}

// Captured calls have none before them whose 1/l a budget could follow: it counts in videos only.
AttentionConfig on_captures(AttentionConfig config) {
  config.budget.reset();
  return config;
}

double mean_density(const std::vector<Capture>& captures, const AttentionConfig& config, Workspace& ws) {
  double sum = 0.0;
  for (const Capture& capture : captures) sum += density_of(capture.inputs(), on_captures(config), ws);
  return sum / static_cast<double>(captures.size());
}

void add_exact_settings(Study& study, DType dtype) {
  study.settings.push_back({"dense", {}, {}, true, true});
  if (const std::optional<AttentionConfig> floor = dense_floor(dtype)) study.settings.push_back({"floor", *floor, {}, true, true});
}

bool holds(const std::vector<double>& list, double value) { return std::find(list.begin(), list.end(), value) != list.end(); }

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

double mean(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return values.empty() ? 0.0 : sum / static_cast<double>(values.size());
}

double ratio(double a, double b) { return b > 0.0 ? a / b : 0.0; }

// get(row) of the rows of one setting; what is unset is left out.
template <class Row, class Get>
std::vector<double> column(const std::vector<Row>& rows, std::size_t setting, Get get) {
  std::vector<double> values;
  for (const Row& row : rows) {
    if (row.setting != setting) continue;
    if (const std::optional<double> value = get(row)) values.push_back(*value);
  }
  return values;
}

std::optional<double> mean_if_any(const std::vector<double>& values) { return values.empty() ? std::nullopt : std::optional(mean(values)); }

// Settings of this prompt that have no row yet, dense first; empty if nothing is left to do.
std::vector<std::size_t> missing_settings(const Study& study, const VideoOptions& options, std::size_t prompt_index) {
  const std::string& prompt = options.prompts[prompt_index];
  const std::uint64_t seed = options.first_seed + prompt_index;
  std::vector<std::size_t> missing = {0};
  for (std::size_t s = 1; s < study.settings.size(); ++s) {
    if (study.settings[s].is_exact && prompt_index >= static_cast<std::size_t>(options.floor_prompts)) continue;
    const bool done = std::any_of(study.videos.begin(), study.videos.end(),
                                  [&](const VideoRow& row) { return row.setting == s && row.prompt == prompt && row.seed == seed; });
    if (study.settings[s].makes_videos && !done) missing.push_back(s);
  }
  return missing.size() > 1 ? missing : std::vector<std::size_t>();
}

VideoRow video_row(const Outcome& outcome, const Outcome& dense) {
  VideoRow row;
  row.density = outcome.report.attention.density();
  row.seconds = outcome.seconds;
  row.plan_seconds = outcome.report.attention.plan_seconds;
  row.attention_seconds = outcome.attention_seconds();
  row.dense_seconds = dense.seconds;
  row.dense_attention_seconds = dense.attention_seconds();
  if (outcome.quality) {
    row.psnr_db = outcome.quality->psnr_db;
    row.ssim = outcome.quality->ssim;
  }
  return row;
}

}  // namespace

Study make_study(const MethodList& list, const std::vector<Capture>& captures, DType dtype, const StudyProgress& progress) {
  check_methods(list);
  Study study;
  add_exact_settings(study, dtype);
  Workspace ws;
  const std::function<double(const AttentionConfig&)> density = [&](const AttentionConfig& config) {
    return mean_density(captures, config, ws);
  };
  const int total = static_cast<int>(list.methods.size());
  for (int i = 0; i < total; ++i) {
    const MethodEntry& entry = list.methods[static_cast<std::size_t>(i)];
    if (!entry.knob) {
      study.settings.push_back({entry.label, entry.at(0.0), {}, false, true});
      continue;
    }
    if (captures.empty()) throw Error(kOperation, "captures: expected some to set the " + entry.knob->key + " of " + entry.label + " by");
    KnobFit fit(entry, density);
    for (const double target : entry.densities.value_or(list.densities)) {
      tell(progress, {"fit", entry.label, i, total});
      const Fitted fitted = fit.fit(target);
      if (std::abs(fitted.density - target) > kReached * target) {
        study.unreached.push_back({entry.label, target, fitted.density});
        continue;
      }
      const bool makes_videos = holds(entry.video_densities.value_or(list.video_densities), target);
      study.settings.push_back({entry.label, fitted.attention, target, false, makes_videos});
    }
  }
  return study;
}

void measure_captures(Study& study, const std::vector<Capture>& captures, const CallOptions& options, const StudyProgress& progress) {
  const int total = static_cast<int>(captures.size() * study.settings.size());
  int done = 0;
  for (const Capture& capture : captures) {
    const AttentionInputs call = capture.inputs();
    const ExactRows exact = f32_rows(call);
    for (std::size_t s = 0; s < study.settings.size(); ++s, ++done) {
      const StudySetting& setting = study.settings[s];
      tell(progress, {"captures", capture.name + "  " + setting.label, done, total});
      CaptureRow row = {capture.name, s, measure_call(call, exact, on_captures(setting.attention), options)};
      if (setting.is_exact) {
        if (row.call.executor == exact.executor) continue;
        row.call.mass_recall = row.call.set_recall = 1.0;
      }
      study.captures.push_back(std::move(row));
    }
  }
}

void measure_videos(Study& study, const Generate& generate, const VideoOptions& options, const StudyProgress& progress) {
  GenerateOptions run = options.generate;
  StudyEvent event = {"videos", {}, 0, 0};
  for (std::size_t p = 0; p < options.prompts.size(); ++p) {
    const std::size_t missing = missing_settings(study, options, p).size();
    event.total += static_cast<int>(missing) * options.repeat;
  }
  run.progress = [&](const ProgressEvent& inner) {
    return (!options.generate.progress || options.generate.progress(inner)) && (!progress || progress(event));
  };
  for (std::size_t p = 0; p < options.prompts.size(); ++p) {
    run.prompt = options.prompts[p];
    run.seed = options.first_seed + p;
    const std::vector<std::size_t> missing = missing_settings(study, options, p);
    if (missing.empty()) continue;
    std::vector<Setting> settings;
    for (const std::size_t s : missing)
      settings.push_back(
          {.label = study.settings[s].label, .attention = study.settings[s].attention, .is_floor = s != 0 && study.settings[s].is_exact});
    const int begun = event.done;
    const auto run_begins = [&](const Setting& setting, int index, int /*num_runs*/) {
      event.done = begun + index;
      event.what = "prompt " + std::to_string(p + 1) + "/" + std::to_string(options.prompts.size()) + "  " + setting.label;
      tell(progress, event);
    };
    const Comparison comparison = compare(generate, run, settings, options.repeat, run_begins);
    for (std::size_t i = 1; i < missing.size(); ++i) {
      VideoRow row = video_row(comparison.outcomes[i], comparison.outcomes[0]);
      row.prompt = run.prompt;
      row.seed = run.seed;
      row.setting = missing[i];
      study.videos.push_back(std::move(row));
    }
    event.done = begun + static_cast<int>(missing.size()) * options.repeat;
    if (options.prompt_done) options.prompt_done();
  }
}

std::vector<CaptureSummary> summarise_captures(const Study& study) {
  std::vector<CaptureSummary> summaries;
  for (std::size_t s = 0; s < study.settings.size(); ++s) {
    const auto all = [&](auto get) {
      return column(study.captures, s, [&](const CaptureRow& row) { return std::optional(get(row.call)); });
    };
    const std::vector<double> densities = all([](const CallMeasurement& m) { return m.density; });
    if (densities.empty()) continue;
    CaptureSummary summary;
    summary.setting = s;
    summary.captures = static_cast<int>(densities.size());
    summary.density = mean(densities);
    summary.errors.rel_l1 = mean(all([](const CallMeasurement& m) { return m.errors.rel_l1; }));
    summary.errors.rel_l2 = mean(all([](const CallMeasurement& m) { return m.errors.rel_l2; }));
    summary.errors.cosine = mean(all([](const CallMeasurement& m) { return m.errors.cosine; }));
    summary.mass_recall = mean_if_any(column(study.captures, s, [](const CaptureRow& row) { return row.call.mass_recall; }));
    summary.set_recall = mean_if_any(column(study.captures, s, [](const CaptureRow& row) { return row.call.set_recall; }));
    summary.plan_share = median(all([](const CallMeasurement& m) { return m.plan_share(); }));
    summary.kernel_speedup = median(all([](const CallMeasurement& m) { return m.kernel_speedup(); }));
    summary.speedup = median(all([](const CallMeasurement& m) { return m.speedup(); }));
    summaries.push_back(summary);
  }
  return summaries;
}

std::vector<VideoSummary> summarise_videos(const Study& study) {
  std::vector<VideoSummary> summaries;
  for (std::size_t s = 0; s < study.settings.size(); ++s) {
    const auto all = [&](auto get) {
      return column(study.videos, s, [&](const VideoRow& row) { return std::optional<double>(get(row)); });
    };
    const std::vector<double> densities = all([](const VideoRow& row) { return row.density; });
    if (densities.empty()) continue;
    VideoSummary summary;
    summary.setting = s;
    summary.prompts = static_cast<int>(densities.size());
    summary.density = mean(densities);
    summary.seconds = median(all([](const VideoRow& row) { return row.seconds; }));
    summary.speedup = median(all([](const VideoRow& row) { return ratio(row.dense_seconds, row.seconds); }));
    summary.attention_speedup = median(all([](const VideoRow& row) { return ratio(row.dense_attention_seconds, row.attention_seconds); }));
    summary.plan_share = median(all([](const VideoRow& row) { return ratio(row.plan_seconds, row.dense_attention_seconds); }));
    const std::vector<double> psnr = column(study.videos, s, [](const VideoRow& row) { return row.psnr_db; });
    summary.psnr_db = mean_if_any(psnr);
    if (!psnr.empty()) summary.worst_psnr_db = *std::min_element(psnr.begin(), psnr.end());
    summary.ssim = mean_if_any(column(study.videos, s, [](const VideoRow& row) { return row.ssim; }));
    summaries.push_back(summary);
  }
  return summaries;
}

std::optional<DenseSummary> summarise_dense(const Study& study) {
  if (study.videos.empty()) return {};
  std::vector<double> seconds;
  std::vector<double> shares;
  for (const VideoRow& row : study.videos) {
    seconds.push_back(row.dense_seconds);
    shares.push_back(ratio(row.dense_attention_seconds, row.dense_seconds));
  }
  return DenseSummary{median(seconds), median(shares)};
}

}  // namespace winnow::report
