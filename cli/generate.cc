// winnow generate: a prompt to a video, with comparisons, reports and a dry run.
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/generate_flags.h"
#include "cli/load_engine.h"
#include "cli/terminal.h"
#include "core/partial_file.h"
#include "core/safetensors.h"
#include "core/text.h"
#include "media/png.h"
#include "media/sheet.h"
#include "media/video.h"
#include "report/comparison.h"
#include "report/forecast.h"
#include "winnow/error.h"
#include "winnow/threads.h"

namespace winnow::cli {

namespace {

constexpr const char* kFooter =
    R"(Sizes are in pixels, times in seconds. A sparse setting's density is the share of self-attention that was computed.

Examples:
  winnow generate --model models/winnow-tiny -p "a red ball bouncing over a plain navy background" -o ball.mp4
  winnow generate --model models/winnow-tiny -p "two small cyan stars spinning over a noisy grey background" -s 7 \
      --attention mean_pool --compare dense --compare skip_softmax --compare floor --report report.json -o stars.mp4
  winnow generate --model Wan2.2-T2V-A14B --prompt-embeds embeds.safetensors --save-latents latents.safetensors \
      --attention '{"method":"mean_pool","cdf":0.9,"skip_first_steps":4}'
  winnow generate --model models/winnow-tiny -p "a red ball" --dry-run)";

const char* solver_name(Solver solver) { return solver == Solver::unipc ? "unipc" : "euler"; }

std::string schedule_line(const Estimate& estimate, const GenerateOptions& options) {
  std::string line =
      counted(options.steps, "step") + format(", %s, sigma mode %s, shift %g", solver_name(estimate.solver),
                                              options.sigma_mode == SigmaMode::wan ? "wan" : "diffusers", estimate.flow_shift);
  if (!estimate.timesteps.empty()) line += format(", timesteps %.1f to %.1f", estimate.timesteps.front(), estimate.timesteps.back());
  return line;
}

std::string expert_line(const Estimate& estimate, int steps) {
  if (!estimate.boundary_ratio) return "one";
  return counted(estimate.high_noise_steps, "high-noise step") + ", then " + counted(steps - estimate.high_noise_steps, "low-noise step") +
         format(" (boundary %g)", *estimate.boundary_ratio);
}

void print_field(const char* name, const std::string& value) { std::printf("%-11s %s\n", name, value.c_str()); }

std::string reason_tally(const SessionTotals& totals) {
  std::string text;
  for (std::size_t i = 0; i < totals.by_reason.size(); ++i) {
    const std::int64_t count = totals.by_reason[i];
    if (count == 0) continue;
    text += (text.empty() ? "" : ", ") + counted(count, "call");
    text += i == 0 ? " sparse" : std::string(" dense (") + dense_reason_name(static_cast<DenseReason>(i)) + ")";
  }
  return text;
}

// "2 of 26 forwards reused; computed: 18 changed, 2 first_step" of one expert.
std::string cache_tally(const CacheCounts& counts) {
  std::string text = std::to_string(counts.reused()) + " of " + counted(counts.forwards(), "forward") + " reused";
  const char* separator = "; computed: ";
  for (int i = 1; i < kNumCacheReasons; ++i) {
    const auto count = static_cast<long long>(counts.by_reason[static_cast<std::size_t>(i)]);
    if (count == 0) continue;
    text += separator + format("%lld %s", count, cache_reason_name(static_cast<CacheReason>(i)));
    separator = ", ";
  }
  return text;
}

// One generation from checked flags to written files.
class Generation {
 public:
  explicit Generation(GenerateFlags flags) : flags_(std::move(flags)) {}

  void run() {
    check_generate_flags(flags_);
    options_ = generate_options(flags_);
    settings_ = attention_settings(flags_, notes_);
    for (report::Setting& setting : settings_) {
      setting.attention = with_model_calibration(setting.attention, flags_.model);
      with_model_calibration(setting.cache, flags_.model);  // its errors come before the long run
    }
    options_.attention = settings_.front().attention;
    options_.cache = settings_.front().cache;
    if (!flags_.dry_run) check_outputs(flags_, settings_);
    if (flags_.threads != 0) set_num_threads(flags_.threads);
    std::fputs(notes_.c_str(), stderr);
    load();
    check_settings();
    estimate_ = engine_->estimate(options_);
    if (flags_.dry_run) {
      dry_run();
    } else {
      check_memory(estimate_);
      if (!flags_.output.empty()) media::check_video_size(flags_.output, estimate_.width, estimate_.height);
      generate();
    }
  }

 private:
  Progress progress() {
    return [this](const ProgressEvent& event) { return printer_(event); };
  }

  void load() {
    printer_.begin("", 0);
    engine_ = std::make_unique<Engine>(load_engine(flags_, progress()));
    printer_.end();
    if (flags_.fps == 0) flags_.fps = engine_->default_fps();
    if (!engine_->has_codec() && (!flags_.output.empty() || !flags_.sheet.empty())) {
      throw Error("generate", flags_.model + ": its video codec is not one that Winnow can run: use --save-latents instead of --output");
    }
    options_.progress = progress();
    options_.diagnostics = [this](const Diagnostic& diagnostic) {
      printer_.end();
      std::fprintf(stderr, "winnow: %s: %s\n", diagnostic.severity == Severity::warning ? "warning" : "note",
                   std::string(diagnostic.message).c_str());
    };
  }

  void check_settings() const {
    GenerateOptions other = options_;
    for (const report::Setting& setting : settings_) {
      other.attention = setting.attention;
      engine_->estimate(other);
    }
  }

  void dry_run() {
    print_field("model", flags_.model);
    print_field("clip",
                format("%lldx%lld, %s at %d fps, %s", static_cast<long long>(estimate_.width), static_cast<long long>(estimate_.height),
                       counted(estimate_.frames, "frame").c_str(), flags_.fps, counted(estimate_.tokens, "token").c_str()));
    print_noise();
    print_field("schedule", schedule_line(estimate_, options_));
    print_field("experts", expert_line(estimate_, options_.steps));
    print_field("memory", "weights " + format_bytes(static_cast<double>(estimate_.weight_bytes)) + ", workspace " +
                              format_bytes(static_cast<double>(estimate_.workspace_bytes)) +
                              (options_.cache.on() ? ", step cache " + format_bytes(static_cast<double>(estimate_.cache_bytes)) : ""));
    print_field("compute", "self-attention (dense) " + format_flops(estimate_.attention_flops) + ", linear layers " +
                               format_flops(estimate_.linear_flops));
    print_field("attention", to_json(options_.attention));
    if (options_.cache.on()) print_field("cache", to_json(options_.cache));
    printer_.begin("measuring", estimate_.high_noise_steps);
    const report::Forecast forecast = report::forecast(*engine_, options_);
    printer_.end();
    const bool dense = std::holds_alternative<Dense>(options_.attention.method);
    print_field("density",
                dense ? "1 (dense)" : format("depends on content, at most 1; %.3f in the measurement below", forecast.probe_density));
    print_field("time",
                "about " + format_duration(forecast.seconds) + " for each run" + (options_.cache.on() ? ", without the cache" : ""));
    print_field("", format("from one measured step at %lldx%lld, %s: %s, %s per second", static_cast<long long>(forecast.probe_width),
                           static_cast<long long>(forecast.probe_height), counted(forecast.probe_frames, "frame").c_str(),
                           format_duration(forecast.probe_seconds).c_str(),
                           format_flops(forecast.probe_flops / std::max(forecast.probe_seconds, 1e-9)).c_str()));
    if (settings_.size() > 1)
      print_field("", "--compare adds " + counted(static_cast<std::int64_t>(settings_.size()) - 1, "setting") + " to it");
  }

  void generate() {
    const int repeat = flags_.repeat > 0 ? flags_.repeat : (settings_.size() > 1 ? 2 : 1);
    const auto announce = [this](const report::Setting& setting, int run, int num_runs) {
      printer_.begin(num_runs > 1 ? format("run %d/%d %s", run + 1, num_runs, setting.label.c_str()) : std::string(),
                     estimate_.high_noise_steps);
    };
    comparison_ = report::compare(*engine_, options_, settings_, repeat, announce);
    printer_.begin("", 0);
    write_videos();
    write_sheets();
    if (!flags_.save_latents.empty()) {
      const std::vector<NamedTensor> tensors = {{"latents", comparison_.outcomes.front().latents}};
      write_safetensors(flags_.save_latents, tensors, {report::noise_source(options_), {"prompt", options_.prompt}});
      written_.push_back(flags_.save_latents);
    }
    if (!flags_.report.empty()) {
      const report::RunInfo info = {.model = flags_.model, .fps = flags_.fps, .precision = precision(flags_)};
      GenerateOptions used = options_;  // with the model's own values, which the report has to tell
      used.solver = estimate_.solver;
      used.flow_shift = estimate_.flow_shift;
      used.boundary_ratio = estimate_.boundary_ratio;
      write_text_file("report", flags_.report, report::to_json(comparison_, used, info));
      written_.push_back(flags_.report);
    }
    printer_.end();
    summarise();
  }

  void write_videos() {
    if (flags_.output.empty()) return;
    for (std::size_t i = 0; i < settings_.size(); ++i) {
      const std::string path = video_path(flags_, settings_, i);
      media::write_video(path, comparison_.outcomes[i].frames, flags_.fps, progress());
      written_.push_back(path);
    }
  }

  void write_sheets() {
    if (!flags_.sheet.empty()) {
      media::write_png(flags_.sheet, media::contact_sheet(comparison_.outcomes.front().frames));
      written_.push_back(flags_.sheet);
    }
    if (settings_.size() < 2 || flags_.output.empty()) return;
    std::vector<media::SheetRow> rows;
    if (comparison_.dense)
      rows.push_back({report::describe(comparison_.outcomes[*comparison_.dense]), comparison_.outcomes[*comparison_.dense].frames});
    for (std::size_t i = 0; i < settings_.size(); ++i) {
      if (comparison_.dense != i) rows.push_back({report::describe(comparison_.outcomes[i]), comparison_.outcomes[i].frames});
    }
    media::write_png(side_by_side_path(flags_), media::side_by_side(rows));
    written_.push_back(side_by_side_path(flags_));
  }

  void print_noise() const {
    const auto [source, value] = report::noise_source(options_);
    print_field(source.c_str(), value);
  }

  void summarise() const {
    print_noise();
    print_field("schedule", schedule_line(estimate_, options_));
    print_field("experts", expert_line(estimate_, options_.steps));
    for (const report::Outcome& outcome : comparison_.outcomes) print_outcome(outcome);
    if (const auto bound = comparison_.attention_bound(); bound && settings_.size() > 1) {
      std::printf("speed-ups include planning; free self-attention would give %.2fx\n", *bound);
    }
    for (const std::string& path : written_) print_field("wrote", path);
  }

  void print_outcome(const report::Outcome& outcome) const {
    print_field("run", report::describe(outcome));
    print_field("", format("%s (%s a step), self-attention %.0f%% of it on %s: %s", format_duration(outcome.seconds).c_str(),
                           format_duration(outcome.seconds / std::max(options_.steps, 1)).c_str(), 100.0 * outcome.attention_share(),
                           outcome.report.attention.executor, reason_tally(outcome.report.attention).c_str()));
    const auto& experts = outcome.report.cache.experts;
    for (std::size_t i = 0; i < experts.size(); ++i) {
      if (experts[i].forwards() == 0) continue;
      const char* expert = !estimate_.boundary_ratio ? "cache: " : i == 0 ? "cache, high noise: " : "cache, low noise: ";
      print_field("", expert + cache_tally(experts[i]));
    }
  }

  GenerateFlags flags_;
  GenerateOptions options_;
  std::vector<report::Setting> settings_;
  std::string notes_;
  std::unique_ptr<Engine> engine_;
  Estimate estimate_;
  report::Comparison comparison_;
  std::vector<std::string> written_;
  ProgressPrinter printer_;
};

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("generate", "Turn a prompt into a video");
  const auto flags = std::make_shared<GenerateFlags>();
  add_generate_flags(*command, *flags);
  command->footer(kFooter);
  command->callback([flags, &action] { action = [flags] { Generation(*flags).run(); }; });
}

}  // namespace winnow::cli
