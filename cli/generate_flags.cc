#include "cli/generate_flags.h"

#include <charconv>
#include <filesystem>
#include <map>
#include <random>

#include "cli/file_names.h"
#include "cli/help.h"
#include "core/partial_file.h"
#include "media/video.h"
#include "winnow/error.h"

namespace winnow::cli {

namespace fs = std::filesystem;

CLI::Option* add_model_flag(CLI::App& command, GenerateFlags& flags) {
  return command.add_option("--model", flags.model, "Model folder in diffusers layout (with model_index.json)")
      ->type_name("DIR")
      ->group("Model");
}

void add_machine_flags(CLI::App& command, GenerateFlags& flags) {
  command.add_option("--dtype", flags.dtype, "Arithmetic of the transformer: bf16 operands with f32 sums, or f32 throughout")
      ->check(one_of({"bf16", "f32"}))
      ->capture_default_str()
      ->type_name("bf16|f32")
      ->group("Model");
  command.add_option("--device", flags.device, "Where to run")
      ->check(one_of({"cpu", "cuda"}))
      ->capture_default_str()
      ->type_name("cpu|cuda")
      ->group("Model");
  command.add_option("--threads", flags.threads, "CPU threads; 0 = one per core, or WINNOW_THREADS. Results do not depend on it")
      ->check(in_range(0, 4096))
      ->type_name("N")
      ->group("Model");
}

void add_prompt_flags(CLI::App& command, GenerateFlags& flags) {
  CLI::Option* prompt = command.add_option("-p,--prompt", flags.prompt, "What to show")->type_name("TEXT")->group("Prompt");
  CLI::Option* negative = command.add_option("-n,--negative-prompt", flags.negative_prompt, "What to avoid; default: the model's own")
                              ->type_name("TEXT")
                              ->group("Prompt");
  command
      .add_option("--prompt-embeds", flags.prompt_embeds,
                  "Safetensors file with prompt_embeds and negative_prompt_embeds [L,text_dim], instead of both prompts")
      ->excludes(prompt)
      ->excludes(negative)
      ->type_name("FILE")
      ->group("Prompt");
}

void add_clip_flags(CLI::App& command, GenerateFlags& flags) {
  command.add_option("-W,--width", flags.width, "Width in pixels; default: the model's")
      ->check(at_least_one())
      ->type_name("N")
      ->group("Clip");
  command.add_option("-H,--height", flags.height, "Height in pixels; default: the model's")
      ->check(at_least_one())
      ->type_name("N")
      ->group("Clip");
  command.add_option("--frames", flags.frames, "Number of frames; default: the model's")
      ->check(at_least_one())
      ->type_name("N")
      ->group("Clip");
}

void add_sampling_flags(CLI::App& command, GenerateFlags& flags, const char* steps) {
  const std::string group = "Sampling";
  command.add_option(steps, flags.steps, "Denoising steps")->check(in_range(1, 10000))->capture_default_str()->type_name("N")->group(group);
  command.add_option("--guidance-scale", flags.guidance_scale, "Classifier-free guidance; > 1 runs the model twice a step")
      ->check(number())
      ->capture_default_str()
      ->type_name("X")
      ->group(group);
  command.add_option("--guidance-scale-2", flags.guidance_scale_2, "The same for the low-noise expert, 1: off; default: --guidance-scale")
      ->check(number())
      ->type_name("X")
      ->group(group);
  command.add_option("--guidance-until", flags.guidance_until, "Share of the steps that are guided, the first ones, in [0,1]")
      ->check(number())
      ->capture_default_str()
      ->type_name("X")
      ->group(group);
  command.add_option("--flow-shift", flags.flow_shift, "Shift of the noise schedule; default: the model's")
      ->check(number())
      ->type_name("X")
      ->group(group);
  command.add_option("--solver", flags.solver, "Default: the model's scheduler")
      ->check(one_of({"unipc", "euler"}))
      ->type_name("unipc|euler")
      ->group(group);
  command.add_option("--sigma-mode", flags.sigma_mode, "Whose base schedule: current diffusers or the Wan repository")
      ->check(one_of({"diffusers", "wan"}))
      ->capture_default_str()
      ->type_name("diffusers|wan")
      ->group(group);
  command
      .add_option("--boundary-ratio", flags.boundary_ratio,
                  "Where the high-noise expert hands over, as a share of the timesteps in [0,1]; default: the model's")
      ->check(number())
      ->type_name("X")
      ->group(group);
  command.add_option("-s,--seed", flags.seed, "Seed of the starting noise, 0 to 2^64-1; -1 = random")
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
  command.add_option("--latents", flags.latents, "Safetensors file with the starting noise, instead of a seed")
      ->excludes("--seed")
      ->type_name("FILE")
      ->group(group);
}

namespace {

void add_sparsity_flags(CLI::App& command, GenerateFlags& flags) {
  const std::string group = "Attention";
  CLI::Option* attention = command
                               .add_option("--attention", flags.attention,
                                           "Self-attention: a method's name (dense, mean_pool, subblock, sol, window, cosine_gate, "
                                           "skip_softmax), a JSON file, or JSON text")
                               ->capture_default_str()
                               ->type_name("NAME|FILE|JSON")
                               ->group(group);
  add_plan_flags(command, attention, flags.plan, flags.plan_blocks, group);
  command
      .add_option("--cache", flags.cache,
                  "Step cache: reuse steps that repeat the last computed one. A method's name (off, first_block, teacache, magcache), a "
                  "JSON file, or JSON text. Settings of --compare run without")
      ->capture_default_str()
      ->type_name("NAME|FILE|JSON")
      ->group(group);
  command
      .add_option("--compare", flags.compare,
                  "Also run this setting, write its video beside the output, side_by_side.png, and PSNR and SSIM against dense, "
                  "which is always run then. May be repeated. \"floor\" = dense on another executor: how far two exact kernels differ")
      ->type_name("NAME|FILE|JSON")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  command
      .add_option("--repeat", flags.repeat,
                  "Runs of each setting, interleaved, of which the fastest counts; default: 2 with --compare, else 1")
      ->check(in_range(1, 1000))
      ->type_name("N")
      ->group(group);
}

void add_output_flags(CLI::App& command, GenerateFlags& flags) {
  const std::string group = "Output";
  command.add_option("--fps", flags.fps, "Frames per second of the file; default: the model's")
      ->check(in_range(1, 1000))
      ->type_name("N")
      ->group("Clip");
  command.add_option("-o,--output", flags.output, "Video: .mp4 (needs the program ffmpeg), .y4m (lossless) or .png (contact sheet)")
      ->type_name("FILE")
      ->group(group);
  command.add_option("--sheet", flags.sheet, "Also a contact sheet of the frames (.png)")->type_name("FILE")->group(group);
  command.add_option("--report", flags.report, "Numbers of the run as JSON")->type_name("FILE")->group(group);
  command.add_option("--save-latents", flags.save_latents, "Final latents as safetensors")->type_name("FILE")->group(group);
  command.add_flag("--dry-run", flags.dry_run, "Print memory, expert split, schedule, density and time, and do not generate")->group(group);
}

std::uint64_t parse_seed(const std::string& text) {
  if (text == "-1") return (static_cast<std::uint64_t>(std::random_device{}()) << 32U) | std::random_device{}();
  std::uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw CLI::ValidationError("--seed", "expected an integer in [0,2^64) or -1, got \"" + text + "\"");
  }
  return seed;
}

std::string unique_label(const std::string& wanted, std::map<std::string, int>& used) {
  const int n = ++used[wanted];
  return n == 1 ? wanted : wanted + "-" + std::to_string(n);
}

fs::path folder_of(const GenerateFlags& flags) {
  for (const std::string& path : {flags.output, flags.sheet, flags.report, flags.save_latents}) {
    if (!path.empty()) return fs::path(path).parent_path();
  }
  return {};
}

}  // namespace

void add_generate_flags(CLI::App& command, GenerateFlags& flags) {
  add_prompt_flags(command, flags);
  add_output_flags(command, flags);
  add_clip_flags(command, flags);
  add_sampling_flags(command, flags);
  add_sparsity_flags(command, flags);
  add_model_flag(command, flags)->required();
  add_machine_flags(command, flags);
}

void check_device(const GenerateFlags& flags) {
  if (flags.device != "cpu") throw Error("generate", "device: expected cpu, got cuda: this build has no CUDA engine");
}

void check_generate_flags(const GenerateFlags& flags) {
  if (flags.prompt.empty() && flags.prompt_embeds.empty()) throw CLI::RequiredError("--prompt or --prompt-embeds");
  if (flags.output.empty() && flags.save_latents.empty() && !flags.dry_run)
    throw CLI::RequiredError("--output (or --save-latents, or --dry-run)");
  if (flags.output.empty() && !flags.compare.empty() && !flags.dry_run)
    throw CLI::RequiredError("--output, which --compare writes beside,");
  check_device(flags);
}

GenerateOptions generate_options(const GenerateFlags& flags) {
  GenerateOptions options;
  options.prompt = flags.prompt;
  options.negative_prompt = flags.negative_prompt;
  options.prompt_embeds = flags.prompt_embeds;
  options.width = flags.width;
  options.height = flags.height;
  options.frames = flags.frames;
  options.steps = flags.steps;
  options.guidance_scale = flags.guidance_scale;
  options.guidance_scale_2 = flags.guidance_scale_2;
  options.guidance_until = flags.guidance_until;
  options.flow_shift = flags.flow_shift;
  if (!flags.solver.empty()) options.solver = flags.solver == "unipc" ? Solver::unipc : Solver::euler;
  options.sigma_mode = flags.sigma_mode == "wan" ? SigmaMode::wan : SigmaMode::diffusers;
  options.boundary_ratio = flags.boundary_ratio;
  options.seed = parse_seed(flags.seed);
  options.latents = flags.latents;
  return options;
}

FixedPlan plan_setting(const std::string& plan, const std::string& blocks) {
  FixedPlan method{.path = plan};
  if (blocks.empty()) return method;
  const char* last = blocks.data() + blocks.size();
  const auto [middle, first_status] = std::from_chars(blocks.data(), last, method.block_q);
  const char* second = middle != last && *middle == 'x' ? middle + 1 : last;
  const auto [end, second_status] = std::from_chars(second, last, method.block_k);
  if (first_status != std::errc() || second_status != std::errc() || end != last || method.block_q < 1 || method.block_k < 1) {
    throw CLI::ValidationError("--plan-blocks: expected queries x keys of one block, such as 128x64, got " + blocks);
  }
  return method;
}

void add_plan_flags(CLI::App& command, CLI::Option* instead_of, std::string& plan, std::string& blocks, const std::string& group) {
  CLI::Option* file =
      command.add_option("--plan", plan, "Run this tile plan, or another program's block mask (.npy, .safetensors), on every call")
          ->excludes(instead_of)
          ->type_name("FILE")
          ->group(group);
  command.add_option("--plan-blocks", blocks, "Queries x keys of the mask's blocks, if its file does not say")
      ->needs(file)
      ->type_name("QxK")
      ->group(group);
}

Precision precision(const GenerateFlags& flags) { return flags.dtype == "f32" ? Precision::f32 : Precision::bf16; }

std::vector<report::Setting> attention_settings(const GenerateFlags& flags, std::string& notes) {
  std::vector<report::Setting> settings;
  std::map<std::string, int> used;
  const auto add = [&](const AttentionConfig& config, const std::string& label, bool is_floor, const StepCacheConfig& cache = {}) {
    config.validate();
    settings.push_back({.label = unique_label(label, used), .attention = config, .cache = cache, .is_floor = is_floor});
  };
  AttentionConfig first;
  if (flags.plan.empty()) {
    first = parse_attention_config(flags.attention);
  } else {
    first.method = plan_setting(flags.plan, flags.plan_blocks);
  }
  const StepCacheConfig cache = parse_step_cache_config(flags.cache);
  add(first, cache.on() ? std::string(first.method_name()) + "+" + cache.method_name() : first.method_name(), false, cache);
  bool has_dense = report::is_dense(settings.front());
  for (const std::string& text : flags.compare) {
    if (text == "floor") {
      const auto floor = report::dense_floor(precision(flags) == Precision::bf16 ? DType::bf16 : DType::f32);
      if (floor) add(*floor, "floor", true);
      if (!floor) notes += "floor not available: this machine has one fast executor only\n";
      continue;
    }
    const AttentionConfig config = parse_attention_config(text);
    const bool dense = std::holds_alternative<Dense>(config.method);
    if (dense && has_dense && to_json(config) == to_json(AttentionConfig{})) continue;  // already there
    has_dense = has_dense || dense;
    add(config, config.method_name(), false);
  }
  if (!flags.compare.empty() && !has_dense) add(AttentionConfig{}, "dense", false);
  return settings;
}

std::string video_path(const GenerateFlags& flags, const std::vector<report::Setting>& settings, std::size_t i) {
  const fs::path output(flags.output);
  return i == 0 ? flags.output : (output.parent_path() / (settings[i].label + output.extension().string())).string();
}

std::string side_by_side_path(const GenerateFlags& flags) { return (folder_of(flags) / "side_by_side.png").string(); }

void read_inputs(FileNames& names, const GenerateFlags& flags) {
  names.read_model(flags.model, "--model");
  names.read(flags.latents, "--latents");
  names.read(flags.prompt_embeds, "--prompt-embeds");
}

void check_outputs(const GenerateFlags& flags, const std::vector<report::Setting>& settings) {
  FileNames names("generate");
  read_inputs(names, flags);
  names.read(flags.plan, "--plan");
  names.read_setting(flags.attention, "--attention");
  names.read_setting(flags.cache, "--cache");
  for (const std::string& other : flags.compare) names.read_setting(other, "--compare");
  if (!flags.output.empty()) {
    for (std::size_t i = 0; i < settings.size(); ++i) {
      const std::string path = video_path(flags, settings, i);
      names.write(path, i == 0 ? "the output" : "the video of --compare " + settings[i].label);
      media::check_video_output(path);
    }
    if (settings.size() > 1) {
      names.write(side_by_side_path(flags), "the side-by-side sheet");
      check_writable("sheet", side_by_side_path(flags));
    }
  }
  if (!flags.sheet.empty()) {
    if (media::video_format(flags.sheet) != media::VideoFormat::png) throw Error("sheet", flags.sheet + ": expected a name ending in .png");
    names.write(flags.sheet, "--sheet");
    check_writable("sheet", flags.sheet);
  }
  if (!flags.report.empty()) {
    names.write(flags.report, "--report");
    check_writable("report", flags.report);
  }
  if (!flags.save_latents.empty()) {
    names.write(flags.save_latents, "--save-latents");
    check_writable("latents", flags.save_latents);
  }
}

}  // namespace winnow::cli
