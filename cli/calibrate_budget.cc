// winnow calibrate budget: how sparse a head may be, from 1/l.
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/generate_flags.h"
#include "cli/help.h"
#include "cli/model_runs.h"
#include "core/partial_file.h"
#include "media/plot.h"
#include "report/budget_study.h"
#include "report/markdown.h"
#include "winnow/error.h"
#include "winnow/threads.h"

namespace winnow::cli {

namespace {

constexpr const char* kFooter =
    R"(Runs the model densely, once per prompt. For every head of every measured call it finds the largest share of key tiles that can be
dropped with rel-L1 at most --error, chosen by their true mass, and fits it to ln of the largest softmax weight (1/l), per expert.
Afterwards --attention '{"method":"subblock","budget":{"map":"FILE"}}' gives each head that share. Prints how well 1/l ranks the
heads, beside the timestep, the entropy and the true mass; --report has every point. Calibrate at the size that you use. What an
interrupted run has measured is kept after every step; --resume goes on from there.

Example:
  winnow calibrate budget --model models/winnow-tiny -p "a small green star bouncing over a noisy grey background" -o budget.json)";

struct BudgetFlags {
  GenerateFlags run;
  std::string captures, prompts, output, plot;
  bool resume = false;
  report::BudgetOptions options;
};

// Runs the model.
report::BudgetStudy measure(const BudgetFlags& flags, const std::vector<report::Prompt>& prompts, const report::Unfinished& unfinished) {
  ModelRuns runs(flags.run, flags.options.generate, prompts);
  report::BudgetStudy study = report::measure_budgets(std::ref(runs), flags.options, &unfinished);
  runs.end();
  return study;
}

void check_flags(const BudgetFlags& flags) {
  if (!flags.captures.empty() && flags.resume) throw CLI::RequiredError("--model, because captures are measured in one go, for --resume");
  if (flags.captures.empty() == flags.run.model.empty()) throw CLI::RequiredError("Either --model or --captures");
  const bool has_prompt = !flags.run.prompt.empty() || !flags.prompts.empty() || !flags.run.prompt_embeds.empty();
  if (flags.captures.empty() && !has_prompt) throw CLI::RequiredError("--prompt, --prompts or --prompt-embeds");
  check_device(flags.run);
  FileNames names = files_read(flags.run, flags.prompts);
  names.read_folder(flags.captures, "--captures");
  names.write(flags.output, "--output");
  names.write(unfinished_path(flags.output), "the unfinished calibration");
  names.write(flags.run.report, "--report");
  names.write(flags.plot, "--plot");
  check_writable("calibrate", flags.output);
  if (!flags.run.report.empty()) check_writable("calibrate", flags.run.report);
  if (!flags.plot.empty()) {
    check_writable("calibrate", flags.plot);
    media::find_gnuplot();
  }
}

void calibrate_budget(BudgetFlags flags) {
  check_flags(flags);
  report::BudgetOptions& options = flags.options;
  options.generate = generate_options(flags.run);
  options.model = flags.run.model;
  const std::vector<report::Prompt> prompts = prompts_of(flags.run, flags.prompts);
  options.prompts = report::texts(prompts);
  if (flags.run.threads != 0) set_num_threads(flags.run.threads);
  std::optional<report::Unfinished> unfinished;
  report::BudgetStudy study;
  if (flags.captures.empty()) {
    const nlohmann::json more = {{"calibrates", "budget"}, {"error", options.error}};
    unfinished.emplace(unfinished_work(flags.run, options.generate, prompts, flags.output, flags.resume, more));
    study = measure(flags, prompts, *unfinished);
  } else {
    study = report::measure_budgets(report::load_captures(flags.captures), options);
  }
  const BudgetCalibration calibration = report::calibrate_budgets(study, options);
  const std::string tables = report::to_markdown(study);  // before anything is written, since points may not suffice for a fit
  calibration.save(flags.output);
  if (!flags.run.report.empty()) write_text_file("calibrate", flags.run.report, report::to_json(study, options));
  if (!flags.plot.empty()) media::write_plot(flags.plot, report::plot_panels(study));
  if (unfinished) unfinished->finish();
  std::printf("%s\n%-11s %s\n", report::without_marks(tables).c_str(), "wrote", flags.output.c_str());
}

}  // namespace

void add_calibrate_budget(CLI::App& calibrate, Action& action) {
  CLI::App* command = calibrate.add_subcommand("budget", "Fit how sparse a head may be to 1/l");
  const auto flags = std::make_shared<BudgetFlags>();
  add_prompt_flags(*command, flags->run);
  add_runs_flags(*command, flags->prompts, flags->resume);
  const std::string group = "Fit";
  command->add_option("--error", flags->options.error, "Largest rel-L1 of a head's output")
      ->check(in_range(1e-6, 1.0))
      ->capture_default_str()
      ->type_name("X")
      ->group(group);
  command->add_option("--overshoot", flags->options.overshoot, "Share of the points that may be promised more sparsity than they have")
      ->check(in_range(0.0, 1.0))
      ->capture_default_str()
      ->type_name("X")
      ->group(group);
  command->add_option("--step-stride", flags->options.step_stride, "Measure every n-th step")
      ->check(at_least_one())
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
  command->add_flag("--line", flags->options.line, "Fit a line instead of a non-decreasing function")->group(group);
  command->add_option("-o,--output", flags->output, "Calibration file")->required()->type_name("FILE")->group("Output");
  command->add_option("--report", flags->run.report, "Every point and score as JSON")->type_name("FILE")->group("Output");
  command->add_option("--plot", flags->plot, "Signal and sparsity over the steps (.png; needs the program gnuplot)")
      ->type_name("FILE")
      ->group("Output");
  add_clip_flags(*command, flags->run);
  add_sampling_flags(*command, flags->run, "--steps,--num-steps");
  CLI::Option* model = add_model_flag(*command, flags->run);
  command->add_option("--captures", flags->captures, "Folder with captures (winnow capture), instead of --model")
      ->type_name("DIR")
      ->group("Model");
  add_machine_flags(*command, flags->run);
  need(*command, model, {"Prompt", "Clip", "Sampling"});
  for (const char* name : {"--step-stride", "--dtype"}) command->get_option(name)->needs(model);
  command->footer(kFooter);
  command->callback([flags, &action] { action = [flags] { calibrate_budget(*flags); }; });
}

}  // namespace winnow::cli
