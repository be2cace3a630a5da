// winnow capture: q, k, v of a generation's self-attention, for `winnow attend` and `winnow compare`.
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/file_names.h"
#include "cli/generate_flags.h"
#include "cli/help.h"
#include "cli/load_engine.h"
#include "cli/terminal.h"
#include "report/capture.h"
#include "winnow/engine.h"
#include "winnow/threads.h"

namespace winnow::cli {

namespace {

namespace fs = std::filesystem;

constexpr const char* kFooter =
    R"(Writes one safetensors file per chosen call, named after it ("step03_expert0_layer02_cond.safetensors"): tensors q, k, v [1,S,H,D] as
attention gets them, q and k after RoPE, and where they come from as metadata. The run ends after the last chosen step.

Examples:
  winnow capture --model models/winnow-tiny -p "a red ball bouncing over a plain navy background" --layers 0,2,5 --steps 3,20 \
      --branch cond -o out/captures
  winnow attend --qkv out/captures/step20_expert1_layer05_cond.safetensors --method mean_pool)";

struct CaptureFlags {
  GenerateFlags run;
  report::CaptureChoice choice;
  std::vector<std::string> branches = {"cond"};
  std::string output;
};

// Folders that are made for `path`; those that nothing was written into are removed again.
class NewFolders {
 public:
  explicit NewFolders(const std::string& path) {
    std::error_code none;
    fs::path folder = fs::absolute(path, none).lexically_normal();
    if (!folder.has_filename()) folder = folder.parent_path();
    for (; !fs::exists(folder, none) && folder.has_relative_path(); folder = folder.parent_path()) folders_.push_back(folder);
  }
  NewFolders(const NewFolders&) = delete;
  NewFolders& operator=(const NewFolders&) = delete;
  ~NewFolders() {
    std::error_code not_empty;
    for (const fs::path& folder : folders_) fs::remove(folder, not_empty);
  }

 private:
  std::vector<fs::path> folders_;  // the innermost first
};

void capture_command(CaptureFlags flags) {
  if (flags.run.prompt.empty() && flags.run.prompt_embeds.empty()) throw CLI::RequiredError("--prompt or --prompt-embeds");
  check_device(flags.run);
  for (const std::string& name : flags.branches) {
    flags.choice.branches.push_back(name == "cond" ? Branch::conditional : Branch::unconditional);
  }
  GenerateOptions options = generate_options(flags.run);
  options.attention = parse_attention_config(flags.run.attention);
  FileNames names("capture");
  read_inputs(names, flags.run);
  names.write_folder(flags.output, "--output");
  if (flags.run.threads != 0) set_num_threads(flags.run.threads);
  ProgressPrinter printer;
  const Progress progress = [&](const ProgressEvent& event) { return printer(event); };
  printer.begin("", 0);
  Engine engine = load_engine(flags.run, progress);
  const Estimate estimate = engine.estimate(options);
  check_memory(estimate);
  options.progress = progress;
  const report::Generate generate = [&](const GenerateOptions& run) { return engine.generate(run); };
  const NewFolders folders(flags.output);
  const std::vector<std::string> files = report::capture(generate, options, estimate.forwards, flags.choice, flags.run.model, flags.output);
  printer.end();
  for (const std::string& file : files) std::printf("wrote       %s\n", file.c_str());
}

}  // namespace

void add_capture(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("capture", "Store q, k, v of chosen self-attention calls of a generation");
  const auto flags = std::make_shared<CaptureFlags>();
  add_prompt_flags(*command, flags->run);
  command->add_option("-o,--output", flags->output, "Folder for the files; made if it is missing")
      ->required()
      ->type_name("DIR")
      ->group("Output");
  const std::string group = "Calls";
  const auto add_numbers = [&](const char* name, std::vector<int>& list, const char* text) {
    add_list(*command, name, list, text, in_range(0, 1 << 20))->type_name("N,N,...")->group(group);
  };
  add_numbers("--layers", flags->choice.layers, "Layers, from 0; default: all");
  add_numbers("--steps", flags->choice.steps, "Denoising steps, from 0; default: all");
  add_numbers("--experts", flags->choice.experts, "Experts: 0 = high noise (or the only one), 1 = low noise; default: all");
  add_list(*command, "--branch", flags->branches, "Guidance branches", one_of({"cond", "uncond"}))
      ->default_str("cond")
      ->type_name("cond,uncond")
      ->group(group);
  command->add_option("--attention", flags->run.attention, "What the run itself computes: method name, JSON file or JSON text")
      ->capture_default_str()
      ->type_name("NAME|FILE|JSON")
      ->group(group);
  add_clip_flags(*command, flags->run);
  add_sampling_flags(*command, flags->run, "--num-steps");
  add_model_flag(*command, flags->run)->required();
  add_machine_flags(*command, flags->run);
  command->footer(kFooter);
  command->callback([flags, &action] { action = [flags] { capture_command(*flags); }; });
}

}  // namespace winnow::cli
