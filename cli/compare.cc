// winnow compare: many attention settings on captured calls and on whole videos.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/file_names.h"
#include "cli/generate_flags.h"
#include "cli/help.h"
#include "cli/interrupt.h"
#include "cli/load_engine.h"
#include "cli/study_printer.h"
#include "cli/terminal.h"
#include "core/json.h"
#include "core/partial_file.h"
#include "media/plot.h"
#include "report/capture.h"
#include "report/study.h"
#include "report/study_text.h"
#include "winnow/engine.h"
#include "winnow/error.h"
#include "winnow/threads.h"

namespace winnow::cli {

namespace {

namespace fs = std::filesystem;

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

struct CompareFlags {
  GenerateFlags run;
  std::string captures, prompts, settings, output = "out/compare";
  std::vector<std::string> methods;
  std::vector<double> densities, video_densities;
  int num_prompts = 0, calls = 20, repeat = 1, floor_prompts = 1;
  bool resume = false, no_plot = false;
};

class Comparing {
 public:
  explicit Comparing(CompareFlags flags) : flags_(std::move(flags)) {}

  void run() {
    check_flags();
    read_inputs();
    check_outputs();
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
  std::string path(const char* name) const { return (fs::path(flags_.output) / name).string(); }
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
    if (!flags_.video_densities.empty()) {
      list_.video_densities = flags_.video_densities;
    }
    for (const std::string& text : flags_.methods) {
      const AttentionConfig config = parse_attention_config(text);
      list_.methods.push_back({.label = text == config.method_name() ? text : report::setting_text(config), .attention = to_json(config)});
    }
    report::check_methods(list_);
    if (!flags_.captures.empty()) captures_ = report::load_captures(flags_.captures);
    if (!flags_.prompts.empty()) prompts_ = report::read_prompts(flags_.prompts);
    if (flags_.num_prompts > 0 && prompts_.size() > static_cast<std::size_t>(flags_.num_prompts)) {
      prompts_.resize(static_cast<std::size_t>(flags_.num_prompts));
    }
  }

  void check_outputs() const {
    if (!flags_.no_plot) media::find_gnuplot();
    std::error_code error;
    fs::create_directories(flags_.output, error);
    if (error) throw Error("compare", flags_.output + ": " + error.message());
    FileNames names("compare");
    names.read(flags_.settings, "--settings");
    names.read(flags_.prompts, "--prompts");
    for (const char* name : {"report.json", "report.csv", "report.md", "pareto.png", "report.unfinished.json"}) {
      names.write(path(name), name);
      check_writable("compare", path(name));
    }
  }

  void load() {
    info_.program = report::program_fingerprint();
    info_.repeat = flags_.repeat;
    if (flags_.run.model.empty()) return;
    info_.model = flags_.run.model;
    info_.precision = precision(flags_.run);
    info_.generate = generate_options(flags_.run);
    engine_.emplace(load_engine(flags_.run, [](const ProgressEvent&) { return interrupt_signal() == 0; }));
    if (!engine_->has_codec()) throw Error("compare", flags_.run.model + ": its video codec is not one that Winnow can run");
    const Estimate estimate = engine_->estimate(info_.generate);
    check_memory(estimate);
    info_.generate.width = estimate.width;
    info_.generate.height = estimate.height;
    info_.generate.frames = estimate.frames;
    info_.generate.solver = estimate.solver;
    info_.generate.flow_shift = estimate.flow_shift;
    info_.generate.boundary_ratio = estimate.boundary_ratio;
  }

  void take_over() {
    for (const char* name : {"report.unfinished.json", "report.json"}) {
      if (!fs::exists(path(name))) continue;
      const int taken = report::take_over_videos(study_, info_, read_text_file(path(name), "compare"), path(name));
      printer_.end();
      std::fprintf(stderr, "winnow: note: %d videos taken over from %s\n", taken, path(name).c_str());
      if (taken > 0) return;
    }
  }

  void measure_videos() {
    report::VideoOptions options;
    options.generate = info_.generate;
    options.prompts = prompts_;
    options.first_seed = info_.generate.seed;
    options.repeat = flags_.repeat;
    options.floor_prompts = flags_.floor_prompts;
    options.prompt_done = [this] { write_text_file("compare", path("report.unfinished.json"), report::to_json(study_, info_)); };
    const report::Generate generate = [this](const GenerateOptions& one) { return engine_->generate(one); };
    report::measure_videos(study_, generate, options, progress());
  }

  void write() {
    const std::string tables = report::to_markdown(study_);
    if (!flags_.no_plot) media::write_plot(path("pareto.png"), report::plot_panels(study_));
    write_text_file("compare", path("report.csv"), report::to_csv(study_));
    write_text_file("compare", path("report.md"), tables);
    write_text_file("compare", path("report.json"), report::to_json(study_, info_));
    std::error_code ignored;
    fs::remove(path("report.unfinished.json"), ignored);
    std::fputs(tables.c_str(), stdout);
    std::printf("\nwrote       %s, report.csv, report.md%s\n", path("report.json").c_str(), flags_.no_plot ? "" : ", pareto.png");
  }

  CompareFlags flags_;
  report::MethodList list_;
  std::vector<report::Capture> captures_;
  std::vector<std::string> prompts_;
  std::optional<Engine> engine_;
  report::StudyInfo info_;
  report::Study study_;
  StudyPrinter printer_;
};

}  // namespace

void add_compare(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("compare", "Compare attention settings on captured calls and on videos");
  const auto flags = std::make_shared<CompareFlags>();
  std::string group = "What is compared";
  command->add_option("--methods", flags->methods, "Settings: method names, JSON files or JSON texts")
      ->type_name("NAME|FILE|JSON ...")
      ->group(group);
  command->add_option("--settings", flags->settings, "JSON file with methods, their knobs, and densities")->type_name("FILE")->group(group);
  command->add_option("--densities", flags->densities, "To set knobs for, instead of the file's")
      ->delimiter(',')
      ->check(CLI::Range(1e-6, 1.0).description(""))
      ->type_name("X,X,...")
      ->group(group);
  command->add_option("--video-densities", flags->video_densities, "Those of them at which videos are made, instead of the file's")
      ->delimiter(',')
      ->check(CLI::Range(1e-6, 1.0).description(""))
      ->type_name("X,X,...")
      ->group(group);
  group = "On captures";
  command->add_option("--captures", flags->captures, "Folder with captures (winnow capture), all of one size")
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
  command->add_option("--num-prompts", flags->num_prompts, "Only the first N of them")->check(at_least_one())->type_name("N")->group(group);
  command->add_option("--repeat", flags->repeat, "Runs of each setting and prompt, interleaved, of which the fastest counts")
      ->check(in_range(1, 1000))
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
  command->add_option("--floor-prompts", flags->floor_prompts, "Prompts that also run dense on another executor, which is slow")
      ->check(in_range(0, 1 << 20))
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
  add_model_flag(*command, flags->run);
  add_machine_flags(*command, flags->run);
  add_clip_flags(*command, flags->run);
  add_sampling_flags(*command, flags->run);
  group = "Output";
  command->add_option("-o,--output", flags->output, "Folder for the report; made if it is missing")
      ->capture_default_str()
      ->type_name("DIR")
      ->group(group);
  command->add_flag("--resume", flags->resume, "Take over finished videos of an earlier report in the same folder")->group(group);
  command->add_flag("--no-plot", flags->no_plot, "Do not draw pareto.png, which needs the program gnuplot")->group(group);
  command->footer(kFooter);
  command->callback([flags, &action] { action = [flags] { Comparing(*flags).run(); }; });
}

}  // namespace winnow::cli
