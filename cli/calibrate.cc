// winnow calibrate: what is fitted once per model.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/generate_flags.h"
#include "cli/help.h"
#include "cli/model_runs.h"
#include "cli/terminal.h"
#include "core/partial_file.h"
#include "report/calibration.h"
#include "winnow/threads.h"

namespace winnow::cli {

namespace {

namespace fs = std::filesystem;

constexpr const char* kFooter =
    R"(Runs the model densely, once per prompt, and fits per expert factor = a exp(b S): S is the share of tiles that skip-softmax drops with
threshold = factor / tokens. Afterwards --attention '{"method":"skip_softmax","target_sparsity":0.1}' works for this model. Calibrate at the
size and number of steps that you use. A target outside the fitted range is refused. What an interrupted run has measured is kept after
every prompt; --resume goes on from there.

Examples:
  winnow calibrate skip-softmax --model models/winnow-tiny -p "a small green star bouncing over a noisy grey background"
  winnow calibrate skip-softmax --model DIR --prompts prompts.txt --steps 40 -o skip-softmax.json)";

struct CalibrateFlags {
  GenerateFlags run;
  std::string prompts, output, executor;
  bool resume = false;
};

void print_expert(const char* name, const SkipCalibration& calibration, int index, const SkipGaps& gaps) {
  const SkipCalibration::Expert& expert = calibration.expert(index);
  std::printf("%-11s a = %.5g, b = %.5g, R2 = %.4f, sparsity %.3f to %.3f\n", name, expert.a, expert.b, expert.r2.value_or(0.0),
              expert.lowest.value_or(0.0), expert.highest.value_or(1.0));
  for (int percent = 5; percent < 100; percent += 5) {
    const double target = percent / 100.0;
    if (target < *expert.lowest || target > *expert.highest) continue;
    const double factor = calibration.factor(index, target);
    std::printf("%-11s target %.2f: factor %10.4g, threshold %.3e, reached here %.3f\n", "", target, factor,
                std::min(1.0, factor / static_cast<double>(calibration.tokens)),
                gaps.sparsity(std::min(factor, static_cast<double>(calibration.tokens))));
  }
}

void calibrate_skip_softmax(CalibrateFlags flags) {
  if (flags.run.prompt.empty() && flags.prompts.empty() && flags.run.prompt_embeds.empty()) {
    throw CLI::RequiredError("--prompt, --prompts or --prompt-embeds");
  }
  check_device(flags.run);
  GenerateOptions options = generate_options(flags.run);
  options.attention.executor = flags.executor;
  const std::vector<report::Prompt> prompts = prompts_of(flags.run, flags.prompts);
  const fs::path own = fs::path(flags.run.model) / "calibration" / "skip-softmax.json";
  const std::string output = flags.output.empty() ? own.string() : flags.output;
  FileNames names = files_read(flags.run, flags.prompts);
  names.write(output, "--output", own.string());
  names.write(unfinished_path(output), "the unfinished calibration", unfinished_path(own.string()));
  if (flags.output.empty() && fs::is_directory(flags.run.model)) {
    std::error_code ignored;  // check_writable() tells
    fs::create_directory(own.parent_path(), ignored);
  }
  check_writable("calibrate", output);
  if (flags.run.threads != 0) set_num_threads(flags.run.threads);
  const report::Unfinished unfinished =
      unfinished_work(flags.run, options, prompts, output, flags.resume, {{"calibrates", "skip-softmax"}});
  ModelRuns runs(flags.run, options, prompts);
  const report::SkipSoftmaxRun result =
      report::calibrate_skip_softmax(std::ref(runs), options, report::texts(prompts), flags.run.model, &unfinished);
  result.calibration.save(output);
  unfinished.finish();
  runs.end();
  std::printf("%-11s %s, %d queries x %d keys, %lld tokens\n", "executor", result.calibration.executor.c_str(), result.calibration.rows,
              result.calibration.keys, static_cast<long long>(result.calibration.tokens));
  for (std::size_t e = 0; e < result.gaps.size(); ++e) {
    if (result.gaps[e].count() == 0) continue;
    print_expert(e == 0 ? "high noise" : "low noise", result.calibration, static_cast<int>(e), result.gaps[e]);
  }
  std::printf("%-11s %s\n", "wrote", output.c_str());
}

}  // namespace

void add_calibrate(CLI::App& app, Action& action) {
  CLI::App* calibrate = app.add_subcommand("calibrate", "Fit a method's settings to a model, once");
  calibrate->require_subcommand(1);
  calibrate->footer("");  // not that of `winnow --help`
  CLI::App* command = calibrate->add_subcommand("skip-softmax", "Fit which threshold drops which share of the tiles");
  const auto flags = std::make_shared<CalibrateFlags>();
  add_prompt_flags(*command, flags->run);
  add_runs_flags(*command, flags->prompts, flags->resume);
  command->add_option("-o,--output", flags->output, "Calibration file; default: calibration/skip-softmax.json in the model folder")
      ->type_name("FILE")
      ->group("Output");
  command->add_option("--executor", flags->executor, "Executor to calibrate for; default: the one that would run")
      ->type_name("NAME")
      ->group("Output");
  add_clip_flags(*command, flags->run);
  add_sampling_flags(*command, flags->run, "--steps,--num-steps");
  add_model_flag(*command, flags->run)->required();
  add_machine_flags(*command, flags->run);
  command->footer(kFooter);
  command->callback([flags, &action] { action = [flags] { calibrate_skip_softmax(*flags); }; });
  add_calibrate_budget(*calibrate, action);
  add_calibrate_magcache(*calibrate, action);
}

}  // namespace winnow::cli
