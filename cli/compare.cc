// winnow compare: many attention settings on captured calls and on whole videos.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/generate_flags.h"
#include "cli/help.h"
#include "cli/interrupt.h"
#include "cli/study_folder.h"
#include "cli/study_printer.h"
#include "cli/terminal.h"
#include "core/label.h"
#include "media/plot.h"
#include "report/capture.h"
#include "report/setting_check.h"
#include "report/study.h"
#include "report/study_text.h"
#include "winnow/engine.h"
#include "winnow/error.h"
#include "winnow/threads.h"

namespace winnow::cli {

namespace {

constexpr const char* kOperation = "compare";
constexpr const char* kPlot = "pareto.png";
constexpr const char* kFooter =
    R"(On captures (winnow capture): error against f32 attention over all rows, recall, and the time of one call, beside dense attention.
On videos: PSNR and SSIM against dense with the same seed, and time. Writes report.json, report.csv, report.md and pareto.png.
A settings file gives methods a knob and densities to set it for (bench/compare.json, docs/comparison.md).
An interrupted run leaves report.unfinished.json; --resume takes finished videos over from it, or from report.json, if program,
model, options and settings are the same.

Examples:
  winnow compare --captures out/captures --methods mean_pool skip_softmax '{"method":"oracle","density":0.25}'
  winnow compare --captures out/captures --settings bench/compare.json -o out/compare
  winnow compare --captures out/captures --model models/winnow-tiny --prompts bench/prompts.txt --num-prompts 3 \
      --settings bench/compare.json -o out/compare)";

// A setting as it was given, JSON on one line.
std::string label_of(const std::string& text) {
  const auto json = nlohmann::ordered_json::parse(text, nullptr, false);
  return json.is_object() ? json.dump() : text;
}

struct CompareFlags : StudyFlags {
  std::string captures;
  std::vector<std::string> methods;
  std::vector<double> densities, video_densities;
  int calls = 20, floor_prompts = 1;
};

class Comparing {
 public:
  explicit Comparing(CompareFlags flags) : flags_(std::move(flags)), folder_(kOperation, flags_.output) {}

  void run() {
    check_flags();
    read_inputs();
    if (!flags_.no_plot) media::find_gnuplot();
    folder_.check(flags_, {"report.csv", "report.md", kPlot});
    if (flags_.run.threads != 0) set_num_threads(flags_.run.threads);
    load();
    study_ = report::make_study(list_, captures_, dtype(), progress());
    for (const report::Unreached& missing : study_.unreached) {
      printer_.end();
      std::fprintf(stderr, "winnow: note: %s cannot be set to density %g; the closest is %.3f\n", missing.label.c_str(), missing.target,
                   missing.closest);
    }
    if (flags_.resume && engine_) take_over();
    report::CallOptions calls;
    calls.repeat = flags_.calls;
    calls.max_seconds = 1.0;
    calls.progress = [](const ProgressEvent&) { return interrupt_signal() == 0; };
    report::measure_captures(study_, captures_, calls, progress());
    if (engine_) measure_videos();
    printer_.end();
    write();
  }

 private:
  DType dtype() const {
    return captures_.empty() ? (info_.precision == Precision::bf16 ? DType::bf16 : DType::f32) : captures_.front().q.view().dtype;
  }
  report::StudyProgress progress() {
    return [this](const report::StudyEvent& event) { return printer_(event); };
  }

  void check_flags() const {
    if (flags_.captures.empty() && flags_.run.model.empty()) throw CLI::RequiredError("--captures, or --model and --prompts,");
    if (flags_.run.model.empty() != flags_.prompts.empty()) throw CLI::RequiredError("--model and --prompts together");
    if (flags_.methods.empty() && flags_.settings.empty()) throw CLI::RequiredError("--methods or --settings");
    check_device(flags_.run);
  }

  void read_inputs() {
    if (!flags_.settings.empty()) list_ = report::read_method_list(flags_.settings);
    if (!flags_.densities.empty()) list_.densities = flags_.densities;
    if (!flags_.video_densities.empty()) list_.video_densities = flags_.video_densities;
    for (const std::string& text : flags_.methods) {
      const AttentionConfig config = parse_attention_config(text);
      list_.methods.push_back({.label = label_of(text), .attention = to_json(config)});
      folder_.files().read_setting(text, "--methods");
    }
    folder_.files().read_folder(flags_.captures, "--captures");
    report::check_methods(list_);
    const auto has_knob = [](const report::MethodEntry& entry) { return entry.knob.has_value(); };
    if (!flags_.densities.empty() && std::none_of(list_.methods.begin(), list_.methods.end(), has_knob)) {
      throw CLI::RequiredError("A method with a knob in --settings, for --densities,");
    }
    if (!flags_.captures.empty()) captures_ = report::load_captures(flags_.captures);
    prompts_ = read_prompts(flags_, kOperation);
  }

  void load() {
    info_.program = report::program_fingerprint();
    info_.repeat = flags_.repeat;
    check_settings();
    if (flags_.run.model.empty()) return;
    engine_.emplace(load_study_engine(flags_, prompts_, kOperation, info_));
    for (const report::MethodEntry& entry : list_.methods) {
      GenerateOptions options = info_.generate;
      options.attention = entry.at(0.0);
      with_label(kOperation, entry.label, [&] { engine_->estimate(options); });
    }
  }

  void check_settings() const {
    for (const report::MethodEntry& entry : list_.methods) {
      const AttentionConfig config = entry.at(0.0);
      if (!captures_.empty()) report::check_setting(entry.label, config, {}, "", kOperation);
      if (!flags_.run.model.empty()) report::check_setting(entry.label, config, {}, flags_.run.model, kOperation);
      if (config.budget && !captures_.empty()) {
        std::fprintf(stderr, "winnow: note: %s: on captures without its budget, since no calls go before them whose 1/l it could follow\n",
                     entry.label.c_str());
      }
    }
  }

  void take_over() {
    folder_.take_over([this](const std::string& text, const std::string& path) {
      const int taken = report::take_over_videos(study_, info_, text, path);
      printer_.end();
      return taken;
    });
  }

  void measure_videos() {
    report::VideoOptions options;
    options.generate = info_.generate;
    options.prompts = report::texts(prompts_);
    options.first_seed = info_.generate.seed;
    options.repeat = flags_.repeat;
    options.floor_prompts = flags_.floor_prompts;
    options.prompt_done = [this] { folder_.keep(report::to_json(study_, info_)); };
    const report::Generate generate = [this](const GenerateOptions& one) { return engine_->generate(one); };
    report::measure_videos(study_, generate, options, progress());
  }

  void write() {
    const std::string tables = report::to_markdown(study_);
    if (!flags_.no_plot) media::write_plot(folder_.path(kPlot), report::plot_panels(study_));
    folder_.write("report.csv", report::to_csv(study_));
    folder_.write("report.md", tables);
    folder_.write("report.json", report::to_json(study_, info_));
    folder_.finish(tables, flags_.no_plot ? "report.csv, report.md" : std::string("report.csv, report.md, ") + kPlot);
  }

  CompareFlags flags_;
  StudyFolder folder_;
  report::MethodList list_;
  std::vector<report::Capture> captures_;
  std::vector<report::Prompt> prompts_;
  std::optional<Engine> engine_;
  report::StudyInfo info_;
  report::Study study_;
  StudyPrinter printer_;
};

}  // namespace

void add_compare(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("compare", "Compare attention settings on captured calls and on videos");
  const auto flags = std::make_shared<CompareFlags>();
  flags->output = "out/compare";
  std::string group = "What is compared";
  command->add_option("--methods", flags->methods, "Settings: method names, JSON files or JSON texts")
      ->type_name("NAME|FILE|JSON ...")
      ->group(group);
  command->add_option("--settings", flags->settings, "JSON file with methods, their knobs, and densities")->type_name("FILE")->group(group);
  add_list(*command, "--densities", flags->densities, "To set knobs for, instead of the file's", in_range(1e-6, 1.0))
      ->type_name("X,X,...")
      ->group(group);
  CLI::Option* video_densities = add_list(*command, "--video-densities", flags->video_densities,
                                          "Those of them at which videos are made, instead of the file's", in_range(1e-6, 1.0))
                                     ->type_name("X,X,...")
                                     ->group(group);
  group = "On captures";
  CLI::Option* captures = command->add_option("--captures", flags->captures, "Folder with captures (winnow capture), all of one size")
                              ->type_name("DIR")
                              ->group(group);
  command->add_option("--calls", flags->calls, "Timed calls of each setting and capture, at most a second of them; 0: no timing")
      ->check(in_range(0, 1 << 20))
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
  group = "On videos";
  command->add_option("--prompts", flags->prompts, "Text file, one prompt a line; the n-th has the n-th seed from --seed on")
      ->type_name("FILE")
      ->group(group);
  add_study_video_flags(*command, *flags, group);
  command->add_option("--floor-prompts", flags->floor_prompts, "Prompts that also run dense on another executor, which is slow")
      ->check(in_range(0, 1 << 20))
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
  CLI::Option* model = add_model_flag(*command, flags->run);
  add_machine_flags(*command, flags->run);
  add_clip_flags(*command, flags->run);
  add_sampling_flags(*command, flags->run);
  add_study_output_flags(*command, *flags, kPlot);
  need(*command, captures, {"On captures"});
  need(*command, model, {"On videos", "Clip", "Sampling"});
  for (CLI::Option* option : {video_densities, command->get_option("--dtype"), command->get_option("--resume")}) option->needs(model);
  command->footer(kFooter);
  command->callback([flags, &action] { action = [flags] { Comparing(*flags).run(); }; });
}

}  // namespace winnow::cli
