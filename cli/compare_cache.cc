// winnow compare-cache: step-cache settings on whole videos, with and without guidance.
#include <cstdio>
#include <filesystem>
#include <memory>
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
#include "core/json.h"
#include "core/partial_file.h"
#include "media/plot.h"
#include "report/cache_study.h"
#include "winnow/engine.h"
#include "winnow/error.h"
#include "winnow/threads.h"

namespace winnow::cli {

namespace {

namespace fs = std::filesystem;

constexpr const char* kOperation = "compare-cache";
constexpr const char* kFooter =
    R"(Every prompt runs without a cache and under every setting, with guidance and without, with the same seed. Writes report.json,
report.md and cache.png. A settings file is {"settings":[{"label":"uniform-0.06","cache":{"method":"first_block",...}}]}
(bench/cache.json). An interrupted run leaves report.unfinished.json, which --resume goes on from.

Example:
  winnow compare-cache --model models/winnow-tiny --prompts bench/prompts.txt --num-prompts 2 --settings bench/cache.json -o out/cache)";

struct CompareCacheFlags {
  GenerateFlags run;
  std::string prompts, settings, output = "out/cache";
  int num_prompts = 0, repeat = 1;
  bool resume = false, no_plot = false;
};

class ComparingCaches {
 public:
  explicit ComparingCaches(CompareCacheFlags flags) : flags_(std::move(flags)) {}

  void run() {
    check_device(flags_.run);
    study_.settings = report::read_cache_settings(flags_.settings);
    prompts_ = report::read_prompts(flags_.prompts);
    if (flags_.num_prompts > 0 && prompts_.size() > static_cast<std::size_t>(flags_.num_prompts)) {
      prompts_.resize(static_cast<std::size_t>(flags_.num_prompts));
    }
    check_outputs();
    if (flags_.run.threads != 0) set_num_threads(flags_.run.threads);
    Engine engine = load();
    if (flags_.resume) take_over();
    report::VideoOptions options;
    options.generate = info_.generate;
    options.prompts = prompts_;
    options.first_seed = info_.generate.seed;
    options.repeat = flags_.repeat;
    options.prompt_done = [this] { write_text_file(kOperation, path("report.unfinished.json"), report::to_json(study_, info_)); };
    const report::Generate generate = [&](const GenerateOptions& one) { return engine.generate(one); };
    report::measure_caches(study_, generate, options, [this](const report::StudyEvent& event) { return printer_(event); });
    printer_.end();
    write();
  }

 private:
  std::string path(const char* name) const { return (fs::path(flags_.output) / name).string(); }

  void check_outputs() const {
    if (!flags_.no_plot) media::find_gnuplot();
    std::error_code error;
    fs::create_directories(flags_.output, error);
    if (error) throw Error(kOperation, flags_.output + ": " + error.message());
    FileNames names(kOperation);
    names.read(flags_.settings, "--settings");
    names.read(flags_.prompts, "--prompts");
    for (const char* name : {"report.json", "report.md", "cache.png", "report.unfinished.json"}) {
      names.write(path(name), name);
      check_writable(kOperation, path(name));
    }
  }

  Engine load() {
    info_.program = report::program_fingerprint();
    info_.repeat = flags_.repeat;
    info_.model = flags_.run.model;
    info_.precision = precision(flags_.run);
    info_.generate = generate_options(flags_.run);
    Engine engine = load_engine(flags_.run, [](const ProgressEvent&) { return interrupt_signal() == 0; });
    if (!engine.has_codec()) throw Error(kOperation, flags_.run.model + ": its video codec is not one that Winnow can run");
    GenerateOptions largest = info_.generate;
    for (const report::CacheSetting& setting : study_.settings) {
      largest.cache = setting.cache;
      check_memory(engine.estimate(largest));
    }
    const Estimate estimate = engine.estimate(info_.generate);
    info_.generate.width = estimate.width;
    info_.generate.height = estimate.height;
    info_.generate.frames = estimate.frames;
    info_.generate.solver = estimate.solver;
    info_.generate.flow_shift = estimate.flow_shift;
    info_.generate.boundary_ratio = estimate.boundary_ratio;
    return engine;
  }

  void take_over() {
    for (const char* name : {"report.unfinished.json", "report.json"}) {
      if (!fs::exists(path(name))) continue;
      const int taken = report::take_over_caches(study_, info_, read_text_file(path(name), kOperation), path(name));
      std::fprintf(stderr, "winnow: note: %d videos taken over from %s\n", taken, path(name).c_str());
      if (taken > 0) return;
    }
  }

  void write() const {
    const std::string tables = report::to_markdown(study_);
    if (!flags_.no_plot) media::write_plot(path("cache.png"), report::plot_panels(study_));
    write_text_file(kOperation, path("report.md"), tables);
    write_text_file(kOperation, path("report.json"), report::to_json(study_, info_));
    std::error_code ignored;
    fs::remove(path("report.unfinished.json"), ignored);
    std::fputs(tables.c_str(), stdout);
    std::printf("\nwrote       %s, report.md%s\n", path("report.json").c_str(), flags_.no_plot ? "" : ", cache.png");
  }

  CompareCacheFlags flags_;
  std::vector<std::string> prompts_;
  report::StudyInfo info_;
  report::CacheStudy study_;
  StudyPrinter printer_;
};

}  // namespace

void add_compare_cache(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("compare-cache", "Compare step-cache settings on videos");
  const auto flags = std::make_shared<CompareCacheFlags>();
  const std::string group = "What is compared";
  command->add_option("--settings", flags->settings, "JSON file with cache settings")->required()->type_name("FILE")->group(group);
  command->add_option("--prompts", flags->prompts, "Text file, one prompt a line; the n-th has the n-th seed from --seed on")
      ->required()
      ->type_name("FILE")
      ->group(group);
  command->add_option("--num-prompts", flags->num_prompts, "Only the first N of them")->check(at_least_one())->type_name("N")->group(group);
  command->add_option("--repeat", flags->repeat, "Runs of each setting and prompt, interleaved, of which the fastest counts")
      ->check(in_range(1, 1000))
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
  add_model_flag(*command, flags->run)->required();
  add_machine_flags(*command, flags->run);
  add_clip_flags(*command, flags->run);
  add_sampling_flags(*command, flags->run);
  command->add_option("-o,--output", flags->output, "Folder for the report; made if it is missing")
      ->capture_default_str()
      ->type_name("DIR")
      ->group("Output");
  command->add_flag("--resume", flags->resume, "Take over finished videos of an earlier report in the same folder")->group("Output");
  command->add_flag("--no-plot", flags->no_plot, "Do not draw cache.png, which needs the program gnuplot")->group("Output");
  command->footer(kFooter);
  command->callback([flags, &action] { action = [flags] { ComparingCaches(*flags).run(); }; });
}

}  // namespace winnow::cli
