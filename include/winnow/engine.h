// The Wan engine: a prompt (or its embeddings) to latents to frames, without Python.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "winnow/callbacks.h"
#include "winnow/session.h"
#include "winnow/step_cache.h"
#include "winnow/steps.h"
#include "winnow/tensor.h"

namespace winnow {

enum class Solver : std::uint8_t { unipc, euler };
// Base sigmas of the flow-matching schedule: current diffusers (1 .. 0.001) or the Wan repository (0.999 .. 0).
enum class SigmaMode : std::uint8_t { diffusers, wan };
// Arithmetic of the transformer: f32 throughout, or bf16 operands with f32 sums as diffusers does with torch_dtype=bfloat16.
enum class Precision : std::uint8_t { bf16, f32 };

// What one self-attention call is about to be given. The views end with the callback and are not to be written to.
struct AttentionInputs {
  StepContext context;
  TensorView q, k, v;  // [1,S,H,D], q and k after RoPE; the logits' scale is 1/sqrt(D)
};
// Called before every self-attention call, on the thread that generates. What it throws ends the run.
using AttentionObserver = std::function<void(const AttentionInputs&)>;

// The hidden states of a forward: before the first block and, unless the step cache left blocks out, after the last one.
struct HiddenStates {
  StepContext context;
  bool after_blocks = false;
  TensorView x;  // [tokens, D]; ends with the callback and is not to be written to
};
using HiddenObserver = std::function<void(const HiddenStates&)>;

struct GenerateOptions {
  std::string prompt;
  std::string negative_prompt;  // empty: the model's own
  std::string prompt_embeds;    // safetensors file with prompt_embeds, negative_prompt_embeds [L,text_dim]; replaces both prompts
  std::int64_t width = 0, height = 0, frames = 0;  // pixels; 0: the model's default
  int steps = 30;
  double guidance_scale = 3.5;             // > 1 turns classifier-free guidance on
  std::optional<double> guidance_scale_2;  // of the low-noise expert; unset: guidance_scale. 1: without the unconditional forward
  float guidance_until = 1.0F;             // share of the steps that are guided, the first ones; later ones run without it
  std::optional<double> flow_shift;        // unset: the model's scheduler_config.json
  std::optional<Solver> solver;            // unset: the model's scheduler class
  SigmaMode sigma_mode = SigmaMode::diffusers;
  bool euler_double_shift = false;       // reproduce diffusers' FlowMatchEuler, which shifts twice
  std::optional<double> boundary_ratio;  // unset: model_index.json
  std::uint64_t seed = 0;
  std::string latents;        // safetensors file with the starting noise; empty: seeded noise
  AttentionConfig attention;  // of self-attention
  StepCacheConfig cache;
  Progress progress;
  Diagnostics diagnostics;
  AttentionObserver attention_observer;  // may be empty, and costs nothing then
  HiddenObserver hidden_observer;        // the same
};

// One denoising step's record.
struct StepReport {
  int step = 0;
  int expert = 0;
  double timestep = 0.0;
  double density = 1.0;  // of the self-attention calls that ran
  double seconds = 0.0;
  int forwards = 0;  // one per guidance branch
  int reused = 0;    // of these, by the step cache
};

struct GenerateReport {
  std::uint64_t seed = 0;  // of the noise, unless that came from a file
  std::vector<StepReport> steps;
  int high_noise_steps = 0;  // steps on expert 0
  SessionTotals attention;   // self-attention
  CacheTotals cache;         // empty without a step cache
  double seconds = 0.0;      // denoising, planning included
  double linear_seconds = 0.0;
  double cross_attention_seconds = 0.0;
  double other_seconds = 0.0;  // neither attention nor linear layers
  std::size_t workspace_bytes = 0;
};

struct GenerateResult {
  Tensor latents;  // [1,C,F,h,w] f32
  Tensor frames;   // [frames,height,width,3] f32 in [0,1]; empty if the model has no codec that Winnow knows
  GenerateReport report;
};

// What a run will need, before running it.
struct Estimate {
  std::size_t weight_bytes = 0;
  std::size_t workspace_bytes = 0;
  std::size_t cache_bytes = 0;  // of the step cache
  std::int64_t tokens = 0;
  std::vector<double> timesteps;
  std::vector<StepContext> forwards;  // of the run, in order; layer 0 of each
  int high_noise_steps = 0;
  double attention_flops = 0.0;  // self-attention, dense; of the whole run, both guidance branches
  double linear_flops = 0.0;     // of the whole run
  // The options with the model's own values filled in.
  std::int64_t width = 0, height = 0, frames = 0;
  Solver solver = Solver::unipc;
  double flow_shift = 0.0;
  std::optional<double> boundary_ratio;  // unset: one expert
};

struct EngineOptions {
  Precision precision = Precision::bf16;
  Progress progress;
};

class Engine {
 public:
  // Loads a diffusers-layout model directory (model_index.json, transformer/, optional transformer_2/, scheduler/ ...).
  // Throws Error naming the file and key for anything missing, extra, of wrong shape or non-finite.
  Engine(const std::string& directory, const EngineOptions& options);
  ~Engine();
  Engine(Engine&&) noexcept;

  bool has_codec() const;
  int default_fps() const;
  // Also looks at the file of options.latents, except for its values.
  Estimate estimate(const GenerateOptions& options) const;
  // Throws the Error that a run with this prompt would begin with: it names every word that the model does not know.
  void check_prompt(const std::string& prompt) const;
  // Throws Error before any work if an option is invalid, Cancelled if progress returns false.
  GenerateResult generate(const GenerateOptions& options);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace winnow
