// The flags of `winnow generate`, and what they mean together. Other commands that run the model share groups of them.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/file_names.h"
#include "report/comparison.h"
#include "winnow/engine.h"

namespace winnow::cli {

struct GenerateFlags {
  std::string model, prompt, negative_prompt, prompt_embeds, latents;
  std::int64_t width = 0, height = 0, frames = 0;
  int fps = 0;
  int steps = 30;
  double guidance_scale = 3.5;
  float guidance_until = 1.0F;
  std::optional<double> guidance_scale_2, flow_shift, boundary_ratio;
  std::string solver, sigma_mode = "diffusers", dtype = "bf16", device = "cpu", cache = "off";
  std::string seed = "0";
  std::string attention = "dense";
  std::string plan, plan_blocks;
  std::vector<std::string> compare;
  int repeat = 0;
  int threads = 0;
  std::string output, sheet, report, save_latents;
  bool dry_run = false;
};
void add_generate_flags(CLI::App& command, GenerateFlags& flags);
// Groups of these.
CLI::Option* add_model_flag(CLI::App& command, GenerateFlags& flags);  // --model
void add_machine_flags(CLI::App& command, GenerateFlags& flags);       // --dtype, --device, --threads
void add_prompt_flags(CLI::App& command, GenerateFlags& flags);
void add_clip_flags(CLI::App& command, GenerateFlags& flags);
// `steps` names the flag for the number of denoising steps.
void add_sampling_flags(CLI::App& command, GenerateFlags& flags, const char* steps = "--steps");

// Throws CLI::ValidationError for flags that contradict each other or lack a companion, Error for what this build does not have.
void check_generate_flags(const GenerateFlags& flags);
void check_device(const GenerateFlags& flags);

// Everything but attention and callbacks. A seed of -1 is replaced by a random one. Throws Error.
GenerateOptions generate_options(const GenerateFlags& flags);
Precision precision(const GenerateFlags& flags);

// The method of --plan FILE and --plan-blocks QxK (empty: as the file says). Throws CLI::ValidationError.
FixedPlan plan_setting(const std::string& plan, const std::string& blocks);
void add_plan_flags(CLI::App& command, CLI::Option* instead_of, std::string& plan, std::string& blocks, const std::string& group);

// The setting of --attention or --plan first, then those of --compare, and dense if there is anything to compare. Labels are unique.
// "floor" stands for dense on another executor and is left out, with a note in `notes`, where there is none. Throws Error.
std::vector<report::Setting> attention_settings(const GenerateFlags& flags, std::string& notes);

// Where the outcome of a setting is written: -o for the first, else its label beside it.
std::string video_path(const GenerateFlags& flags, const std::vector<report::Setting>& settings, std::size_t i);
std::string side_by_side_path(const GenerateFlags& flags);

// The model and the tensor files that a run reads.
void read_inputs(FileNames& names, const GenerateFlags& flags);
// Every output can be written, no two are the same file and none is an input. Called before the long run. Throws Error.
void check_outputs(const GenerateFlags& flags, const std::vector<report::Setting>& settings);

}  // namespace winnow::cli
