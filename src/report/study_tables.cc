// A study as Markdown tables and as panels of the plot.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "core/text.h"
#include "report/markdown.h"
#include "report/study_text.h"

namespace winnow::report {

namespace {

constexpr double kFastEnough = 1.5;

// Of errors: 0.0712, 0.00053.
std::string error_text(double value) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), value >= 1e-3 ? "%.4f" : "%.2g", value);
  return std::isfinite(value) ? text.data() : "";
}

std::string percent(double share) { return fixed(100.0 * share, 1) + " %"; }
std::string times(double ratio) { return ratio > 0.0 ? fixed(ratio, 2) : ""; }

const StudySetting& setting(const Study& study, std::size_t index) { return study.settings[index]; }

// Sparsest last; settings without a target and exact ones at the end.
double target_rank(const StudySetting& s) { return s.is_exact ? 3.0 : s.target ? 1.0 - *s.target : 2.0; }

template <class Summary, class Worse>
std::vector<Summary> sorted(const Study& study, std::vector<Summary> summaries, Worse key) {
  std::stable_sort(summaries.begin(), summaries.end(), [&](const Summary& a, const Summary& b) {
    const double rank_a = target_rank(setting(study, a.setting));
    const double rank_b = target_rank(setting(study, b.setting));
    return rank_a != rank_b ? rank_a < rank_b : key(a) < key(b);
  });
  return summaries;
}

std::string captures_table(const Study& study) {
  const auto summaries = sorted(study, summarise_captures(study), [](const CaptureSummary& s) { return s.errors.rel_l2; });
  std::vector<Cells> rows;
  for (const CaptureSummary& s : summaries) {
    const StudySetting& own = setting(study, s.setting);
    rows.push_back({own.is_exact ? own.label + " (floor)" : own.label, fixed(own.target, 2), fixed(s.density, 3),
                    error_text(s.errors.rel_l2), error_text(s.errors.rel_l1), fixed(s.errors.cosine, 5), fixed(s.mass_recall, 3),
                    fixed(s.set_recall, 3), percent(s.plan_share), times(s.kernel_speedup), times(s.speedup)});
  }
  return table(
      {"method", "target", "density", "rel-L2", "rel-L1", "cosine", "mass recall", "set recall", "planning / dense", "kernel x", "total x"},
      rows);
}

std::string videos_table(const Study& study) {
  const auto summaries = sorted(study, summarise_videos(study), [](const VideoSummary& s) { return -s.psnr_db.value_or(0.0); });
  std::vector<Cells> rows;
  for (const VideoSummary& s : summaries) {
    const StudySetting& own = setting(study, s.setting);
    const std::string label = own.is_exact ? own.label + " (" + own.attention.executor + ")" : own.label;
    rows.push_back({label, fixed(own.target, 2), fixed(s.density, 3), fixed(s.psnr_db, 1), fixed(s.worst_psnr_db, 1), fixed(s.ssim, 4),
                    times(s.attention_speedup), times(s.speedup), fixed(s.seconds, 1), std::to_string(s.prompts)});
  }
  std::string text =
      table({"method", "target", "density", "PSNR dB", "worst", "SSIM", "attention x", "video x", "seconds", "prompts"}, rows);
  if (const auto dense = summarise_dense(study)) {
    text += "\nDense: " + fixed(dense->seconds, 1) + " s, of which self-attention " + fixed(100.0 * dense->attention_share, 0) +
            " %; free self-attention would give " + fixed(dense->bound(), 2) + "x.\n";
  }
  return text;
}

// "a 0.61 > b 0.57": labels in the order of `value`, largest or smallest first.
template <class Summary>
std::string ranking(const Study& study, std::vector<Summary> summaries, bool largest_first,
                    const std::function<std::optional<double>(const Summary&)>& value, const std::function<std::string(double)>& text) {
  std::erase_if(summaries, [&](const Summary& s) { return !value(s); });
  std::stable_sort(summaries.begin(), summaries.end(),
                   [&](const Summary& a, const Summary& b) { return largest_first ? *value(a) > *value(b) : *value(a) < *value(b); });
  std::string line;
  for (const Summary& s : summaries)
    line += (line.empty() ? "" : largest_first ? " > " : " < ") + setting(study, s.setting).label + " " + text(*value(s));
  return line;
}

std::vector<std::string> method_labels(const Study& study) {
  std::vector<std::string> labels;
  for (const StudySetting& s : study.settings) {
    if (!s.is_exact && std::find(labels.begin(), labels.end(), s.label) == labels.end()) labels.push_back(s.label);
  }
  return labels;
}

std::vector<double> targets_of(const Study& study) {
  std::vector<double> targets;
  for (const StudySetting& s : study.settings) {
    if (s.target && std::find(targets.begin(), targets.end(), *s.target) == targets.end()) targets.push_back(*s.target);
  }
  std::sort(targets.rbegin(), targets.rend());
  return targets;
}

std::string order_lists(const Study& study) {
  std::vector<Cells> rows;
  for (const double target : targets_of(study)) {
    std::vector<CaptureSummary> captures = summarise_captures(study);
    std::erase_if(captures, [&](const CaptureSummary& s) { return setting(study, s.setting).target != target; });
    std::vector<VideoSummary> videos = summarise_videos(study);
    std::erase_if(videos, [&](const VideoSummary& s) { return setting(study, s.setting).target != target; });
    const auto three = [](double x) { return fixed(x, 3); };
    rows.push_back({fixed(target, 2), "mass recall",
                    ranking<CaptureSummary>(
                        study, captures, true, [](const CaptureSummary& s) { return s.mass_recall; }, three)});
    rows.push_back({fixed(target, 2), "rel-L2",
                    ranking<CaptureSummary>(
                        study, captures, false, [](const CaptureSummary& s) { return std::optional(s.errors.rel_l2); }, error_text)});
    if (videos.empty()) continue;
    rows.push_back({fixed(target, 2), "PSNR dB",
                    ranking<VideoSummary>(
                        study, videos, true, [](const VideoSummary& s) { return s.psnr_db; }, [](double x) { return fixed(x, 1); })});
  }
  return table({"density", "by", "best first"}, rows);
}

// The summary of a label at a target, or null.
template <class Summary>
const Summary* find(const Study& study, const std::vector<Summary>& summaries, const std::string& label, double target) {
  for (const Summary& s : summaries) {
    if (setting(study, s.setting).label == label && setting(study, s.setting).target == target) return &s;
  }
  return nullptr;
}

// One row per method: error, mass recall and PSNR at every target.
std::string summary_table(const Study& study) {
  const std::vector<CaptureSummary> captures = summarise_captures(study);
  const std::vector<VideoSummary> videos = summarise_videos(study);
  std::vector<double> video_targets = targets_of(study);
  std::erase_if(video_targets, [&](double target) {
    return std::none_of(videos.begin(), videos.end(), [&](const VideoSummary& s) { return setting(study, s.setting).target == target; });
  });
  Cells header = {"method"};
  for (const double target : targets_of(study)) header.push_back("rel-L2 at " + fixed(target, 2));
  for (const double target : targets_of(study)) header.push_back("mass recall at " + fixed(target, 2));
  for (const double target : video_targets) header.push_back("PSNR dB at " + fixed(target, 2));
  std::vector<Cells> rows;
  for (const std::string& label : method_labels(study)) {
    Cells row = {label};
    for (const double target : targets_of(study)) {
      const CaptureSummary* s = find(study, captures, label, target);
      row.push_back(s != nullptr ? error_text(s->errors.rel_l2) : "");
    }
    for (const double target : targets_of(study)) {
      const CaptureSummary* s = find(study, captures, label, target);
      row.push_back(s != nullptr ? fixed(s->mass_recall, 3) : "");
    }
    for (const double target : video_targets) {
      const VideoSummary* s = find(study, videos, label, target);
      row.push_back(s != nullptr ? fixed(s->psnr_db, 1) : "");
    }
    rows.push_back(row);
  }
  return table(header, rows);
}

// For each label, the setting of highest PSNR among those with fast enough attention.
std::string fast_table(const Study& study) {
  const std::vector<VideoSummary> summaries = summarise_videos(study);
  std::vector<Cells> rows;
  for (const std::string& label : method_labels(study)) {
    const VideoSummary* best = nullptr;
    const VideoSummary* fastest = nullptr;
    for (const VideoSummary& s : summaries) {
      if (setting(study, s.setting).label != label) continue;
      if (fastest == nullptr || s.attention_speedup > fastest->attention_speedup) fastest = &s;
      if (s.attention_speedup < kFastEnough) continue;
      if (best == nullptr || s.psnr_db.value_or(0.0) > best->psnr_db.value_or(0.0)) best = &s;
    }
    if (fastest == nullptr) continue;
    if (best == nullptr) {
      rows.push_back({label, "none; at most " + times(fastest->attention_speedup), fixed(fastest->density, 3), fixed(fastest->psnr_db, 1),
                      times(fastest->speedup), std::to_string(fastest->prompts),
                      "`" + setting_text(setting(study, fastest->setting).attention) + "`"});
      continue;
    }
    rows.push_back({label, times(best->attention_speedup), fixed(best->density, 3), fixed(best->psnr_db, 1), times(best->speedup),
                    std::to_string(best->prompts), "`" + setting_text(setting(study, best->setting).attention) + "`"});
  }
  return table({"method", "attention x", "density", "PSNR dB", "video x", "prompts", "setting"}, rows);
}

std::string unreached_text(const Study& study) {
  std::string text;
  for (const Unreached& missing : study.unreached) {
    text += (text.empty() ? "\nOut of reach: " : "; ") + missing.label + " at " + fixed(missing.target, 2) + " (closest " +
            fixed(missing.closest, 3) + ")";
  }
  return text.empty() ? text : text + ".\n";
}

// One series per label, its points by x.
template <class Summary>
std::vector<media::PlotSeries> plot_series(const Study& study, const std::vector<Summary>& summaries,
                                           const std::function<std::array<double, 2>(const Summary&)>& point) {
  std::vector<media::PlotSeries> series;
  for (const Summary& s : summaries) {
    if (setting(study, s.setting).is_exact) continue;
    const std::string& label = setting(study, s.setting).label;
    auto own = std::find_if(series.begin(), series.end(), [&](const media::PlotSeries& other) { return other.name == label; });
    if (own == series.end()) own = series.insert(series.end(), {label, {}});
    own->points.push_back(point(s));
  }
  for (media::PlotSeries& s : series) std::sort(s.points.begin(), s.points.end());
  return series;
}

}  // namespace

std::string to_markdown(const Study& study) {
  const bool has_targets = !targets_of(study).empty();  // the summary and the order have a column or a row for each
  std::string text;
  const auto add = [&](const char* name, const std::string& body) { text += (text.empty() ? "" : "\n") + block(name, body); };
  if (has_targets) add("summary", summary_table(study));
  if (!study.captures.empty()) add("captures", captures_table(study) + unreached_text(study));
  if (!study.videos.empty()) add("videos", videos_table(study));
  if (has_targets) add("order", order_lists(study));
  if (!study.videos.empty()) add("fast", fast_table(study));
  return text;
}

std::vector<media::PlotPanel> plot_panels(const Study& study) {
  std::vector<media::PlotPanel> panels;
  if (const std::vector<CaptureSummary> captures = summarise_captures(study); !captures.empty()) {
    media::PlotPanel panel;
    panel.title = "One attention call, mean over " + counted(captures.front().captures, "capture");
    panel.x_label = "density: share of query-key pairs that are computed";
    panel.y_label = "rel-L2 error of the output";
    panel.series = plot_series<CaptureSummary>(study, captures, [](const CaptureSummary& s) {
      return std::array{s.density, s.errors.rel_l2};
    });
    for (const CaptureSummary& s : captures) {
      if (!setting(study, s.setting).is_exact) continue;
      panel.floor = s.errors.rel_l2;
      panel.floor_name = "dense against f32: the floor";
    }
    panels.push_back(std::move(panel));
  }
  if (const std::vector<VideoSummary> videos = summarise_videos(study); !videos.empty()) {
    media::PlotPanel panel;
    panel.title = "Whole videos, mean over " + counted(videos.back().prompts, "prompt");
    panel.x_label = "speed-up of self-attention, planning included";
    panel.y_label = "PSNR against dense, dB";
    panel.series = plot_series<VideoSummary>(study, videos, [](const VideoSummary& s) {
      return std::array{s.attention_speedup, s.psnr_db.value_or(std::nan(""))};
    });
    for (const VideoSummary& s : videos) {
      if (!setting(study, s.setting).is_exact) continue;
      panel.floor = s.psnr_db;
      panel.floor_name = "dense by another executor: the floor";
    }
    panels.push_back(std::move(panel));
  }
  return panels;
}

}  // namespace winnow::report
