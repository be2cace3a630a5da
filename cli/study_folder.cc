#include "cli/study_folder.h"

#include <cstdio>
#include <filesystem>
#include <system_error>

#include "cli/help.h"
#include "cli/interrupt.h"
#include "cli/load_engine.h"
#include "core/json.h"
#include "core/partial_file.h"
#include "core/text.h"
#include "report/markdown.h"
#include "winnow/error.h"

namespace winnow::cli {

namespace fs = std::filesystem;

namespace {
constexpr const char* kUnfinished = "report.unfinished.json";
constexpr const char* kReport = "report.json";
}  // namespace

void add_study_video_flags(CLI::App& command, StudyFlags& flags, const std::string& group) {
  command.add_option("--num-prompts", flags.num_prompts, "Only the first N of them")->check(at_least_one())->type_name("N")->group(group);
  command.add_option("--repeat", flags.repeat, "Runs of each setting and prompt, interleaved, of which the fastest counts")
      ->check(in_range(1, 1000))
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
}

void add_study_output_flags(CLI::App& command, StudyFlags& flags, const std::string& plot) {
  const std::string group = "Output";
  command.add_option("-o,--output", flags.output, "Folder for the report; made if it is missing")
      ->capture_default_str()
      ->type_name("DIR")
      ->group(group);
  command.add_flag("--resume", flags.resume, "Take over finished videos of an earlier report in the same folder")->group(group);
  command.add_flag("--no-plot", flags.no_plot, "Do not draw " + plot + ", which needs the program gnuplot")->group(group);
}

std::vector<report::Prompt> read_prompts(const StudyFlags& flags, const std::string& operation) {
  if (flags.prompts.empty()) return {};
  std::vector<report::Prompt> prompts = report::read_prompts(flags.prompts, operation);
  if (flags.num_prompts > 0 && prompts.size() > static_cast<std::size_t>(flags.num_prompts)) {
    prompts.resize(static_cast<std::size_t>(flags.num_prompts));
  }
  return prompts;
}

Engine load_study_engine(const StudyFlags& flags, const std::vector<report::Prompt>& prompts, const std::string& operation,
                         report::StudyInfo& info) {
  info.model = flags.run.model;
  info.precision = precision(flags.run);
  info.generate = generate_options(flags.run);
  Engine engine = load_engine(flags.run, [](const ProgressEvent&) { return interrupt_signal() == 0; });
  if (!engine.has_codec()) throw Error(operation, flags.run.model + ": its video codec is not one that Winnow can run");
  report::check_prompts(prompts, engine, operation);
  const Estimate estimate = engine.estimate(info.generate);
  check_memory(estimate);
  info.generate.width = estimate.width;
  info.generate.height = estimate.height;
  info.generate.frames = estimate.frames;
  info.generate.solver = estimate.solver;
  info.generate.flow_shift = estimate.flow_shift;
  info.generate.boundary_ratio = estimate.boundary_ratio;
  return engine;
}

std::string StudyFolder::path(const std::string& name) const { return (fs::path(folder_) / name).string(); }

void StudyFolder::check(const StudyFlags& flags, std::initializer_list<const char*> names) {
  read_inputs(files_, flags.run);
  files_.read_setting(flags.settings, "--settings");
  files_.read(flags.prompts, "--prompts");
  std::vector<std::string> outputs = {kReport, kUnfinished};
  outputs.insert(outputs.end(), names.begin(), names.end());
  for (const std::string& name : outputs) files_.write(path(name), name);
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) throw Error(operation_, folder_ + ": " + error.message());
  for (const std::string& name : outputs) check_writable(operation_, path(name));
}

void StudyFolder::write(const std::string& name, std::string_view text) const { write_text_file(operation_, path(name), text); }

void StudyFolder::keep(std::string_view report) const { write(kUnfinished, report); }

void StudyFolder::take_over(const std::function<int(const std::string& text, const std::string& path)>& take) const {
  for (const char* name : {kUnfinished, kReport}) {
    if (!fs::exists(path(name))) continue;
    const int taken = take(read_text_file(path(name), operation_), path(name));
    std::fprintf(stderr, "winnow: note: %s taken over from %s\n", counted(taken, "video").c_str(), path(name).c_str());
    if (taken > 0) return;
  }
}

void StudyFolder::finish(const std::string& tables, const std::string& others) const {
  std::error_code ignored;
  fs::remove(path(kUnfinished), ignored);
  std::fputs(report::without_marks(tables).c_str(), stdout);
  std::printf("\nwrote       %s, %s\n", path(kReport).c_str(), others.c_str());
}

}  // namespace winnow::cli
