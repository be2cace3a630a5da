// Many attention settings side by side: on captured attention calls, and on whole videos of many prompts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "report/attention_call.h"
#include "report/capture.h"
#include "report/comparison.h"
#include "report/method_list.h"
#include "winnow/engine.h"
#include "winnow/session.h"

namespace winnow::report {

struct StudySetting {
  std::string label;
  AttentionConfig attention;
  std::optional<double> target;  // the density that its knob was set for
  bool is_exact = false;         // dense, on the default or on another executor
  bool makes_videos = true;
};

// A density that a method could not be set to.
struct Unreached {
  std::string label;
  double target = 0.0;
  double closest = 0.0;
};

struct CaptureRow {
  std::string capture;
  std::size_t setting = 0;  // index into Study::settings
  CallMeasurement call;
};

// One generation; the dense one of the same prompt ran beside it.
struct VideoRow {
  std::string prompt;
  std::uint64_t seed = 0;
  std::size_t setting = 0;
  double density = 1.0;
  double seconds = 0.0, plan_seconds = 0.0, attention_seconds = 0.0;  // of the run; attention includes planning
  double dense_seconds = 0.0, dense_attention_seconds = 0.0;
  std::optional<double> psnr_db, ssim;
};

struct Study {
  std::vector<StudySetting> settings;  // "dense" first, "floor" second where there is one
  std::vector<Unreached> unreached;
  std::vector<CaptureRow> captures;
  std::vector<VideoRow> videos;
};

struct StudyEvent {
  std::string_view stage;  // "fit", "captures", "videos"
  std::string what;        // what comes next
  int done = 0, total = 0;
};
// Called before every piece of work, and inside generations. False cancels.
using StudyProgress = std::function<bool(const StudyEvent&)>;

// Sets every knob to every density, measured as the mean over the captures. Captures may be empty if no method has a knob.
// `video_densities` of the list decide which settings make videos; settings without a knob all do. Throws Error, Cancelled.
Study make_study(const MethodList& list, const std::vector<Capture>& captures, DType dtype, const StudyProgress& progress);

// Measures every setting on every capture against f32 attention over all rows, and adds the rows. Exact settings are measured
// where they do not run on the executor that computes the f32 rows.
void measure_captures(Study& study, const std::vector<Capture>& captures, const CallOptions& options, const StudyProgress& progress);

struct VideoOptions {
  GenerateOptions generate;  // prompt, seed and attention are replaced
  std::vector<std::string> prompts;
  std::uint64_t first_seed = 0;       // the prompts have seeds of their own: first_seed, first_seed + 1, ...
  int repeat = 1;                     // runs of each setting and prompt, interleaved, of which the fastest counts
  int floor_prompts = 1;              // prompts with a floor run, which takes several times as long as any other
  std::function<void()> prompt_done;  // may be empty
};
// Runs what `study.videos` does not hold yet, with dense beside it, and adds the rows.
void measure_videos(Study& study, const Generate& generate, const VideoOptions& options, const StudyProgress& progress);

// Summaries over captures and prompts: means of densities, errors, recalls, PSNR and SSIM; medians of times and ratios.
struct CaptureSummary {
  std::size_t setting = 0;
  int captures = 0;
  double density = 0.0;
  CallErrors errors;
  std::optional<double> mass_recall, set_recall;
  double plan_share = 0.0, kernel_speedup = 0.0, speedup = 0.0;
};
std::vector<CaptureSummary> summarise_captures(const Study& study);

struct VideoSummary {
  std::size_t setting = 0;
  int prompts = 0;
  double density = 0.0;
  double seconds = 0.0, speedup = 0.0, attention_speedup = 0.0;
  double plan_share = 0.0;  // of the dense attention time
  std::optional<double> psnr_db, worst_psnr_db, ssim;
};
std::vector<VideoSummary> summarise_videos(const Study& study);

// What the videos' dense runs took.
struct DenseSummary {
  double seconds = 0.0;
  double attention_share = 0.0;
  double bound() const { return attention_share < 1.0 ? 1.0 / (1.0 - attention_share) : 0.0; }  // Amdahl: if attention were free
};
std::optional<DenseSummary> summarise_dense(const Study& study);

}  // namespace winnow::report
