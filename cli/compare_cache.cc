// winnow compare-cache: step-cache settings on whole videos, with and without guidance.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/generate_flags.h"
#include "cli/load_engine.h"
#include "cli/study_folder.h"
#include "cli/study_printer.h"
#include "media/plot.h"
#include "report/cache_study.h"
#include "report/setting_check.h"
#include "winnow/engine.h"
#include "winnow/threads.h"

namespace winnow::cli {

namespace {

constexpr const char* kOperation = "compare-cache";
constexpr const char* kPlot = "cache.png";
constexpr const char* kFooter =
    R"(Every prompt runs without a cache and under every setting, with guidance and without, with the same seed. Writes report.json,
report.md and cache.png. A settings file is {"settings":[{"label":"uniform-0.06","cache":{"method":"first_block",...}}]}
(bench/cache.json). An interrupted run leaves report.unfinished.json, which --resume goes on from.

Example:
  winnow compare-cache --model models/winnow-tiny --prompts bench/prompts.txt --num-prompts 2 --settings bench/cache.json -o out/cache)";

class ComparingCaches {
 public:
  explicit ComparingCaches(StudyFlags flags) : flags_(std::move(flags)), folder_(kOperation, flags_.output) {}

  void run() {
    check_device(flags_.run);
    study_.settings = report::read_cache_settings(flags_.settings);
    const std::vector<report::Prompt> prompts = read_prompts(flags_, kOperation);
    if (!flags_.no_plot) media::find_gnuplot();
    folder_.check(flags_, {"report.md", kPlot});
    if (flags_.run.threads != 0) set_num_threads(flags_.run.threads);
    Engine engine = load(prompts);
    if (flags_.resume) {
      folder_.take_over(
          [this](const std::string& text, const std::string& path) { return report::take_over_caches(study_, info_, text, path); });
    }
    report::VideoOptions options;
    options.generate = info_.generate;
    options.prompts = report::texts(prompts);
    options.first_seed = info_.generate.seed;
    options.repeat = flags_.repeat;
    options.prompt_done = [this] { folder_.keep(report::to_json(study_, info_)); };
    const report::Generate generate = [&](const GenerateOptions& one) { return engine.generate(one); };
    report::measure_caches(study_, generate, options, [this](const report::StudyEvent& event) { return printer_(event); });
    printer_.end();
    write();
  }

 private:
  Engine load(const std::vector<report::Prompt>& prompts) {
    info_.program = report::program_fingerprint();
    info_.repeat = flags_.repeat;
    Engine engine = load_study_engine(flags_, prompts, kOperation, info_);
    GenerateOptions largest = info_.generate;
    for (const report::CacheSetting& setting : study_.settings) {
      largest.cache = setting.cache;
      report::check_setting(setting.label, largest.attention, setting.cache, flags_.run.model, kOperation);
      check_memory(engine.estimate(largest));
    }
    return engine;
  }

  void write() const {
    const std::string tables = report::to_markdown(study_);
    if (!flags_.no_plot) media::write_plot(folder_.path(kPlot), report::plot_panels(study_));
    folder_.write("report.md", tables);
    folder_.write("report.json", report::to_json(study_, info_));
    folder_.finish(tables, flags_.no_plot ? "report.md" : std::string("report.md, ") + kPlot);
  }

  StudyFlags flags_;
  StudyFolder folder_;
  report::StudyInfo info_;
  report::CacheStudy study_;
  StudyPrinter printer_;
};

}  // namespace

void add_compare_cache(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("compare-cache", "Compare step-cache settings on videos");
  const auto flags = std::make_shared<StudyFlags>();
  flags->output = "out/cache";
  const std::string group = "What is compared";
  command->add_option("--settings", flags->settings, "JSON file with cache settings")->required()->type_name("FILE")->group(group);
  command->add_option("--prompts", flags->prompts, "Text file, one prompt a line; the n-th has the n-th seed from --seed on")
      ->required()
      ->type_name("FILE")
      ->group(group);
  add_study_video_flags(*command, *flags, group);
  add_model_flag(*command, flags->run)->required();
  add_machine_flags(*command, flags->run);
  add_clip_flags(*command, flags->run);
  add_sampling_flags(*command, flags->run);
  add_study_output_flags(*command, *flags, kPlot);
  command->footer(kFooter);
  command->callback([flags, &action] { action = [flags] { ComparingCaches(*flags).run(); }; });
}

}  // namespace winnow::cli
