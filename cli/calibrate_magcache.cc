// winnow calibrate magcache: how the blocks' residuals grow and shrink from step to step.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/generate_flags.h"
#include "cli/help.h"
#include "cli/model_runs.h"
#include "core/partial_file.h"
#include "report/magnitudes.h"
#include "winnow/threads.h"

namespace winnow::cli {

namespace {

constexpr const char* kFooter =
    R"(Runs the model densely, once per prompt, and measures per expert, step and guidance branch how large what all blocks add is against
the step before: the ratios that MagCache needs. Afterwards --cache '{"method":"magcache","calibration":"FILE"}' works for this model.
Calibrate at the number of steps that you use. What an interrupted run has measured is kept after every prompt; --resume goes on.

Example:
  winnow calibrate magcache --model models/winnow-tiny -p "a small green star bouncing over a noisy grey background" -o magcache.json)";

struct MagcacheFlags {
  GenerateFlags run;
  std::string prompts, output;
  bool resume = false;
};

void print_ratios(const char* expert, const char* branch, const std::vector<double>& ratios) {
  if (ratios.size() < 2) return;
  const auto [low, high] = std::minmax_element(ratios.begin() + 1, ratios.end());  // the first step has no step before it
  std::printf("%-11s %-13s %zu steps, ratios %.4f to %.4f\n", expert, branch, ratios.size(), *low, *high);
}

void calibrate_magcache(const MagcacheFlags& flags) {
  if (flags.run.prompt.empty() && flags.prompts.empty() && flags.run.prompt_embeds.empty()) {
    throw CLI::RequiredError("--prompt, --prompts or --prompt-embeds");
  }
  check_device(flags.run);
  FileNames names = files_read(flags.run, flags.prompts);
  names.write(flags.output, "--output");
  names.write(unfinished_path(flags.output), "the unfinished calibration");
  check_writable("calibrate", flags.output);
  const GenerateOptions options = generate_options(flags.run);
  const std::vector<report::Prompt> prompts = prompts_of(flags.run, flags.prompts);
  if (flags.run.threads != 0) set_num_threads(flags.run.threads);
  const report::Unfinished unfinished =
      unfinished_work(flags.run, options, prompts, flags.output, flags.resume, {{"calibrates", "magcache"}});
  ModelRuns runs(flags.run, options, prompts);
  const report::MagnitudeRun result =
      report::calibrate_magnitudes(std::ref(runs), options, report::texts(prompts), flags.run.model, &unfinished);
  result.calibration.save(flags.output);
  unfinished.finish();
  runs.end();
  const ExpertRatios& ratios = result.calibration.ratios;
  print_ratios("high noise", "conditional", ratios.high.conditional);
  print_ratios("", "unconditional", ratios.high.unconditional);
  print_ratios("low noise", "conditional", ratios.low.conditional);
  print_ratios("", "unconditional", ratios.low.unconditional);
  std::printf("%-11s %s\n", "wrote", flags.output.c_str());
}

}  // namespace

void add_calibrate_magcache(CLI::App& calibrate, Action& action) {
  CLI::App* command = calibrate.add_subcommand("magcache", "Measure the ratios of the step cache magcache");
  const auto flags = std::make_shared<MagcacheFlags>();
  add_prompt_flags(*command, flags->run);
  add_runs_flags(*command, flags->prompts, flags->resume);
  command->add_option("-o,--output", flags->output, "Calibration file")->required()->type_name("FILE")->group("Output");
  add_clip_flags(*command, flags->run);
  add_sampling_flags(*command, flags->run, "--steps,--num-steps");
  add_model_flag(*command, flags->run)->required();
  add_machine_flags(*command, flags->run);
  command->footer(kFooter);
  command->callback([flags, &action] { action = [flags] { calibrate_magcache(*flags); }; });
}

}  // namespace winnow::cli
