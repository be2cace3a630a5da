#include "cli/model_runs.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "cli/load_engine.h"
#include "core/partial_file.h"

namespace winnow::cli {

namespace {

Engine load_with_progress(const GenerateFlags& flags, ProgressPrinter& printer) {
  printer.begin("", 0);
  return load_engine(flags, [&](const ProgressEvent& event) { return printer(event); });
}

}  // namespace

ModelRuns::ModelRuns(const GenerateFlags& flags, const GenerateOptions& options, const std::vector<report::Prompt>& prompts)
    : first_seed_(options.seed), runs_(std::max<std::size_t>(1, prompts.size())), engine_(load_with_progress(flags, printer_)) {
  check_memory(engine_.estimate(options));
  report::check_prompts(prompts, engine_, "calibrate");
}

GenerateResult ModelRuns::operator()(GenerateOptions options) {
  options.progress = [this](const ProgressEvent& event) { return printer_(event); };
  const std::string which = std::to_string(options.seed - first_seed_ + 1);
  printer_.begin("prompt " + which + "/" + std::to_string(runs_), engine_.estimate(options).high_noise_steps);
  return engine_.generate(options);
}

void add_runs_flags(CLI::App& command, std::string& prompts, bool& resume) {
  command.add_option("--prompts", prompts, "File with a prompt per line, instead of --prompt; each is a run with the next seed")
      ->excludes("--prompt")
      ->excludes("--prompt-embeds")
      ->type_name("FILE")
      ->group("Prompt");
  command.add_flag("--resume", resume, "Go on where the same command was interrupted: from FILE.unfinished beside the output")
      ->group("Output");
}

std::vector<report::Prompt> prompts_of(const GenerateFlags& flags, const std::string& file) {
  if (!flags.prompt_embeds.empty()) return {};
  if (!file.empty()) return report::read_prompts(file, "calibrate");
  return {{.text = flags.prompt, .place = "--prompt"}};
}

std::string unfinished_path(const std::string& output) { return output + ".unfinished"; }

FileNames files_read(const GenerateFlags& flags, const std::string& prompts) {
  FileNames names("calibrate");
  names.read(prompts, "--prompts");
  read_inputs(names, flags);
  return names;
}

report::Unfinished unfinished_work(const GenerateFlags& flags, const GenerateOptions& options, const std::vector<report::Prompt>& prompts,
                                   const std::string& output, bool resume, const nlohmann::json& more) {
  const std::string path = unfinished_path(output);
  check_writable("calibrate", path);
  nlohmann::json identity = report::calibration_identity(flags.model, precision(flags), options, report::texts(prompts));
  identity.update(more);
  report::Unfinished unfinished(path, std::move(identity), resume);
  if (resume) {
    const bool found = !unfinished.taken().is_null();
    std::fprintf(stderr, "winnow: note: %s %s\n", found ? "going on from" : "nothing to take over from", path.c_str());
  }
  return unfinished;
}

}  // namespace winnow::cli
