// What the calibrations share: a model that runs once per prompt, with its progress on stderr, and goes on after an interruption.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/file_names.h"
#include "cli/generate_flags.h"
#include "cli/terminal.h"
#include "report/prompts.h"
#include "report/unfinished.h"
#include "winnow/engine.h"

namespace winnow::cli {

class ModelRuns {
 public:
  // Loads the model, if it and runs of `options` fit into memory and it takes the prompts. They have the seeds from options.seed on;
  // none stand for one run with embeddings. Throws Error.
  ModelRuns(const GenerateFlags& flags, const GenerateOptions& options, const std::vector<report::Prompt>& prompts);
  ModelRuns(const ModelRuns&) = delete;
  ModelRuns& operator=(const ModelRuns&) = delete;

  GenerateResult operator()(GenerateOptions options);  // its progress is replaced
  void end() { printer_.end(); }

 private:
  ProgressPrinter printer_;
  std::uint64_t first_seed_;
  std::size_t runs_;
  Engine engine_;
};

// --prompts and --resume.
void add_runs_flags(CLI::App& command, std::string& prompts, bool& resume);
// Of --prompt, or of the file of --prompts; none with --prompt-embeds. Throws Error.
std::vector<report::Prompt> prompts_of(const GenerateFlags& flags, const std::string& file);
// What a calibration reads; `prompts` is a file or empty.
FileNames files_read(const GenerateFlags& flags, const std::string& prompts);
// Where an interrupted calibration leaves what it has measured.
std::string unfinished_path(const std::string& output);
// The file there; says what is taken over from it. `more` is what decides the numbers besides the runs.
report::Unfinished unfinished_work(const GenerateFlags& flags, const GenerateOptions& options, const std::vector<report::Prompt>& prompts,
                                   const std::string& output, bool resume, const nlohmann::json& more);

}  // namespace winnow::cli
