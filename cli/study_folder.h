// What the two studies share: a folder with their report, a model that makes their videos, and the flags for both.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/file_names.h"
#include "cli/generate_flags.h"
#include "report/prompts.h"
#include "report/study.h"
#include "report/study_text.h"
#include "winnow/engine.h"

namespace winnow::cli {

struct StudyFlags {
  GenerateFlags run;
  std::string prompts, settings, output;
  int num_prompts = 0, repeat = 1;
  bool resume = false, no_plot = false;
};
// --num-prompts and --repeat.
void add_study_video_flags(CLI::App& command, StudyFlags& flags, const std::string& group);
// --output, --resume and --no-plot.
void add_study_output_flags(CLI::App& command, StudyFlags& flags, const std::string& plot);
// Those of --prompts, --num-prompts of them at most; none without --prompts. Throws Error.
std::vector<report::Prompt> read_prompts(const StudyFlags& flags, const std::string& operation);

// Loads the model of a study and completes `info`. Throws Error if it is not one that Winnow can make videos with of these prompts.
Engine load_study_engine(const StudyFlags& flags, const std::vector<report::Prompt>& prompts, const std::string& operation,
                         report::StudyInfo& info);

class StudyFolder {
 public:
  StudyFolder(std::string operation, std::string folder)
      : operation_(std::move(operation)), folder_(std::move(folder)), files_(operation_) {}

  std::string path(const std::string& name) const;
  // Inputs beside those that StudyFlags names.
  FileNames& files() { return files_; }
  // Makes the folder. Throws Error if the files `names` cannot be written there, or are inputs.
  void check(const StudyFlags& flags, std::initializer_list<const char*> names);
  void write(const std::string& name, std::string_view text) const;
  // What is finished so far, until the report is written.
  void keep(std::string_view report) const;
  // Calls take(text, path) with the unfinished report, and with the finished one unless that gave any: the number of videos taken over.
  void take_over(const std::function<int(const std::string& text, const std::string& path)>& take) const;
  // Prints the tables and what has been written: report.json and `others`.
  void finish(const std::string& tables, const std::string& others) const;

 private:
  std::string operation_;
  std::string folder_;
  FileNames files_;
};

}  // namespace winnow::cli
