// Engine: options to a schedule, guidance over one or two experts, and the latents' way back to pixels.
#include "winnow/engine.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string_view>

#include "core/finite.h"
#include "core/random.h"
#include "core/safetensors.h"
#include "core/text.h"
#include "dit/codec.h"
#include "dit/config.h"
#include "dit/rope.h"
#include "dit/scheduler.h"
#include "dit/text.h"
#include "dit/transformer.h"
#include "steps/gate.h"
#include "steps/step_cache.h"
#include "winnow/error.h"

namespace winnow {

namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

[[noreturn]] void refuse(const std::string& what) { throw Error("generate", what); }

// Options with the model's own values filled in, all checked.
struct Plan {
  std::int64_t width = 0, height = 0, frames = 0;  // pixels
  std::int64_t channels = 0, latent_frames = 0, latent_height = 0, latent_width = 0;
  Grid grid;
  int num_layers = 0;
  dit::ScheduleOptions schedule;
  std::optional<double> boundary_ratio;  // only with two experts
  std::array<double, 2> guidance{};      // per expert
  int guided_steps = 0;                  // the first ones

  std::int64_t elements() const { return channels * latent_frames * latent_height * latent_width; }
  double boundary() const { return boundary_ratio ? *boundary_ratio * static_cast<double>(schedule.num_train_timesteps) : -1.0; }
  int expert(double timestep) const { return boundary_ratio && timestep < boundary() ? 1 : 0; }
  // Does the step take an unconditional forward? With scale 1 it would cancel out.
  bool guided(int step, int expert) const { return step < guided_steps && guidance[static_cast<std::size_t>(expert)] != 1.0; }
  StepContext context(int step, double timestep, Branch branch) const {
    StepContext context;
    context.expert = expert(timestep);
    context.num_layers = num_layers;
    context.step = step;
    context.num_steps = schedule.steps;
    context.timestep = std::clamp(timestep / static_cast<double>(schedule.num_train_timesteps), 0.0, 1.0);
    context.branch = branch;
    context.grid = grid;
    return context;
  }
  std::vector<StepContext> forwards(const dit::Schedule& s) const {
    std::vector<StepContext> all;
    for (int step = 0; step < schedule.steps; ++step) {
      const double t = s.timesteps[static_cast<std::size_t>(step)];
      all.push_back(context(step, t, Branch::conditional));
      if (guided(step, expert(t))) all.push_back(context(step, t, Branch::unconditional));
    }
    return all;
  }
  bool any_guided(const dit::Schedule& s) const { return forwards(s).size() > s.timesteps.size(); }
};

void check_scale(const char* key, double value) {
  if (!std::isfinite(value) || value < 0.0) refuse(std::string(key) + ": expected a number >= 0, got " + short_number(value));
}

Plan make_plan(const dit::ModelConfig& config, const GenerateOptions& options) {
  const dit::TransformerConfig& model = config.transformer;
  Plan plan;
  if (options.steps < 1 || options.steps > 10000) refuse("steps: expected 1 to 10000, got " + std::to_string(options.steps));
  check_scale("guidance_scale", options.guidance_scale);
  if (!(options.guidance_until >= 0.0F && options.guidance_until <= 1.0F)) {
    refuse("guidance_until: expected a number in [0,1], got " + short_number(options.guidance_until));
  }
  const bool guided = options.guidance_scale > 1.0;  // alone decides, as in diffusers
  // In f32 and rounded there, so that 0.7 of 30 steps are 21.
  if (guided) plan.guided_steps = static_cast<int>(std::ceil(options.guidance_until * static_cast<float>(options.steps)));
  plan.guidance = {options.guidance_scale, options.guidance_scale};
  if (options.guidance_scale_2) {
    check_scale("guidance_scale_2", *options.guidance_scale_2);
    if (!config.index.two_experts()) refuse("guidance_scale_2: this model has one expert");
    plan.guidance[1] = *options.guidance_scale_2;
  }
  if (options.boundary_ratio) {
    if (!config.index.two_experts()) refuse("boundary_ratio: this model has one expert");
    if (!(*options.boundary_ratio >= 0.0 && *options.boundary_ratio <= 1.0)) {
      refuse("boundary_ratio: expected a number in [0,1], got " + short_number(*options.boundary_ratio));
    }
  }
  if (config.index.two_experts()) plan.boundary_ratio = options.boundary_ratio ? options.boundary_ratio : config.index.boundary_ratio;

  plan.schedule.solver = options.solver.value_or(config.scheduler.solver);
  plan.schedule.steps = options.steps;
  plan.schedule.shift = options.flow_shift.value_or(config.scheduler.flow_shift);
  if (!std::isfinite(plan.schedule.shift) || plan.schedule.shift <= 0.0 || plan.schedule.shift > 1e3) {
    refuse("flow_shift: expected a number in (0,1000], got " + short_number(plan.schedule.shift));
  }
  plan.schedule.sigma_mode = options.sigma_mode;
  plan.schedule.euler_double_shift = options.euler_double_shift;
  if (plan.schedule.solver == Solver::euler && options.sigma_mode == SigmaMode::wan) refuse("sigma_mode: wan belongs to solver unipc");
  if (plan.schedule.solver == Solver::unipc && options.euler_double_shift) refuse("euler_double_shift: belongs to solver euler");
  plan.schedule.num_train_timesteps = config.scheduler.num_train_timesteps;
  plan.schedule.solver_order = config.scheduler.solver_order;
  plan.schedule.lower_order_final = config.scheduler.lower_order_final;

  if (model.in_channels != model.out_channels) {
    refuse("this model needs an image (in_channels " + std::to_string(model.in_channels) + ", out_channels " +
           std::to_string(model.out_channels) + "); Winnow generates from text only");
  }
  plan.width = options.width == 0 ? config.defaults.width : options.width;
  plan.height = options.height == 0 ? config.defaults.height : options.height;
  plan.frames = options.frames == 0 ? config.defaults.frames : options.frames;
  const std::int64_t spatial = config.codec.scale_factor_spatial;
  const std::int64_t temporal = config.codec.scale_factor_temporal;
  const auto check_limit = [](const char* key, std::int64_t value) {
    constexpr std::int64_t kLimit = 1 << 20;
    if (value > kLimit) refuse(std::string(key) + ": expected at most " + std::to_string(kLimit) + ", got " + std::to_string(value));
  };
  const auto check_size = [&](const char* key, std::int64_t value, std::int64_t multiple) {
    if (value < multiple || value % multiple != 0) {
      refuse(std::string(key) + ": expected a positive multiple of " + std::to_string(multiple) + ", got " + std::to_string(value));
    }
    check_limit(key, value);
  };
  check_size("width", plan.width, spatial * model.patch_size[2]);
  check_size("height", plan.height, spatial * model.patch_size[1]);
  if (plan.frames < 1 || (plan.frames - 1) % temporal != 0) {
    refuse("frames: expected " + std::to_string(temporal) + " k + 1, got " + std::to_string(plan.frames));
  }
  check_limit("frames", plan.frames);
  plan.num_layers = static_cast<int>(model.num_layers);
  check_fits_model(options.attention.gate, plan.num_layers, config.index.two_experts() ? 2 : 1);
  plan.channels = model.out_channels;
  plan.latent_frames = (plan.frames - 1) / temporal + 1;
  plan.latent_height = plan.height / spatial;
  plan.latent_width = plan.width / spatial;
  if (plan.latent_frames % model.patch_size[0] != 0) {
    refuse("frames: expected a multiple of " + std::to_string(model.patch_size[0]) + " latent frames, got " +
           std::to_string(plan.latent_frames));
  }
  plan.grid = dit::Transformer::grid(model, plan.latent_frames, plan.latent_height, plan.latent_width);
  for (const std::int64_t side : {plan.grid.frames, plan.grid.height, plan.grid.width}) {
    if (side > model.rope_max_seq_len) {
      refuse("size: expected at most " + std::to_string(model.rope_max_seq_len) + " tokens per axis, got " +
             std::to_string(plan.grid.frames) + "x" + std::to_string(plan.grid.height) + "x" + std::to_string(plan.grid.width));
    }
  }
  return plan;
}

}  // namespace

struct Engine::Impl {
  std::string directory;
  dit::ModelConfig config;
  dit::LinearContext linear;
  std::vector<dit::Transformer> experts;
  std::optional<dit::WordEmbedding> words;
  std::optional<dit::BlockDctCodec> codec;
  Workspace ws;

  Impl(const std::string& model_directory, const EngineOptions& options)
      : directory(model_directory), config(dit::load_model_config(directory)) {
    const auto start = Clock::now();
    const int count = config.index.two_experts() ? 2 : 1;
    if (config.text.runnable) words.emplace(directory + "/text_encoder", config.text);
    if (config.codec.runnable) codec.emplace(config.codec);
    for (int expert = 0; expert < count; ++expert) {
      const auto loaded = [&](int layer) {
        if (!options.progress) return;
        ProgressEvent event;
        event.stage = "load";
        event.step = expert;
        event.num_steps = count;
        event.layer = layer;
        event.num_layers = static_cast<int>(config.transformer.num_layers);
        event.seconds = since(start);
        if (!options.progress(event)) throw Cancelled("load");
      };
      experts.emplace_back(directory + (expert == 0 ? "/transformer" : "/transformer_2"), config.transformer, options.precision, linear,
                           loaded);
    }
  }

  Tensor encode(const std::string& prompt) const {
    if (words) return words->encode(prompt);
    const std::string encoder =
        config.index.text_encoder.empty() ? "no text encoder" : "a text encoder that Winnow cannot run, " + config.index.text_encoder;
    refuse("prompt: this model has " + encoder + "; give prompt_embeds");
  }

  dit::TextRows text_rows(const GenerateOptions& options, bool guided) const {
    if (!options.prompt_embeds.empty()) return dit::load_prompt_embeds(options.prompt_embeds, config.transformer.text_dim, guided);
    dit::TextRows rows;
    rows.positive = encode(options.prompt);
    if (guided) rows.negative = encode(options.negative_prompt.empty() ? config.text.negative_prompt : options.negative_prompt);
    return rows;
  }

  // The starting noise in `file`, [1,C,F,h,w]; its values are not looked at.
  static TensorView stored_latents(const SafetensorsFile& file, const Plan& plan) {
    if (!file.contains("latents") && file.keys().size() != 1)
      throw Error("latents", file.name() + ": expected one tensor, or one named latents");
    TensorView view = file.at(file.contains("latents") ? "latents" : file.keys()[0]);
    const std::string found = view.describe();
    if (view.rank == 4) view = view.reshape({1, view.size(0), view.size(1), view.size(2), view.size(3)});
    const TensorView wanted(static_cast<void*>(nullptr), DType::f32,
                            {1, plan.channels, plan.latent_frames, plan.latent_height, plan.latent_width});
    if (view.rank != 5 || view.shape != wanted.shape) {
      throw Error("latents", file.name() + ": expected " + wanted.describe() + ", got " + found);
    }
    if (!is_convertible(view.dtype)) throw Error("latents", file.name() + ": expected f32, f16, bf16 or f64, got " + found);
    return view;
  }

  // latents [1,C,F,h,w] f32: from the file, or noise.
  Tensor start_latents(const GenerateOptions& options, const Plan& plan) const {
    Tensor latents(DType::f32, {1, plan.channels, plan.latent_frames, plan.latent_height, plan.latent_width});
    if (options.latents.empty()) {
      fill_normal({latents.as<float>(), static_cast<std::size_t>(latents.numel())}, options.seed);
      return latents;
    }
    const auto file = SafetensorsFile::open(options.latents);
    convert(stored_latents(file, plan), latents);
    if (!all_finite(latents)) throw Error("latents", options.latents + ": contains NaN or Inf");
    return latents;
  }

  GenerateResult generate(const GenerateOptions& options);
};

namespace {

// One run's loop state. Everything is allocated before the first step, except what the Workspace learns during it.
class Run {
 public:
  Run(Workspace& ws, const std::vector<dit::Transformer>& experts, const dit::LinearContext& linear, const GenerateOptions& options,
      AttentionConfig attention, StepCacheConfig cache, const Plan& plan, const dit::TextRows& text, Tensor latents)
      : ws_(ws),
        experts_(experts),
        linear_(linear),
        options_(options),
        plan_(plan),
        session_(std::move(attention), options.diagnostics),
        cache_(std::move(cache), options.diagnostics),
        sampler_(plan.schedule, static_cast<std::size_t>(plan.elements())),
        rope_(dit::make_rope(experts[0].config(), plan.grid)),
        latents_(std::move(latents)) {
    const DType dtype = experts[0].dtype();
    const auto shape = {plan.channels, plan.latent_frames, plan.latent_height, plan.latent_width};
    conditional_ = Tensor(dtype, shape);
    const bool guided = plan.any_guided(sampler_.schedule());
    if (guided) unconditional_ = Tensor(dtype, shape);
    velocity_ = Tensor(DType::f32, shape);
    text_.resize(experts.size());
    for (const double t : sampler_.schedule().timesteps) {
      const auto e = static_cast<std::size_t>(plan.expert(t));
      if (!text_[e][0].k.empty()) continue;
      experts[e].prepare(plan.grid.tokens());
      text_[e][0] = experts[e].encode_text(text.positive, ws);
      if (guided) text_[e][1] = experts[e].encode_text(text.negative, ws);
    }
    begin_cache();
    report_.seed = options.seed;
    report_.steps.reserve(static_cast<std::size_t>(plan.schedule.steps));
    report_.high_noise_steps = dit::high_noise_steps(sampler_.schedule(), plan.boundary());
    layer_begins_ = [this](int layer, const dit::ForwardStats& stats) { tell(layer, stats); };
    if (options.attention_observer || options.hidden_observer) {
      probe_ = [this](int layer, const char* name, const TensorView& view) {
        if (options_.attention_observer) observe_attention(layer, name, view);
        if (options_.hidden_observer) observe_hidden(layer, name, view);
      };
    }
  }

  void denoise() {
    start_ = Clock::now();
    const double linear_before = linear_.seconds();
    for (step_ = 0; step_ < plan_.schedule.steps; ++step_) {
      const std::size_t memory_before = ws_.system_allocations();
      one_step();
      if (ws_.system_allocations() != memory_before) ws_.reset();  // one block that fits from now on
    }
    report_.seconds = since(start_);
    report_.attention = session_.totals();
    report_.cache = cache_.totals();
    report_.linear_seconds = linear_.seconds() - linear_before;
    report_.other_seconds = std::max(0.0, report_.seconds - report_.linear_seconds - report_.cross_attention_seconds -
                                              report_.attention.plan_seconds - report_.attention.attend_seconds);
    report_.workspace_bytes = ws_.capacity_bytes();
  }

  GenerateReport& report() { return report_; }
  Tensor& latents() { return latents_; }

 private:
  static constexpr std::uint64_t kRequest = 0;  // the cache belongs to this run alone

  void begin_cache() {
    std::vector<int> experts;
    for (const double t : sampler_.schedule().timesteps) experts.push_back(plan_.expert(t));
    if (cache_.config().on()) cache_.begin_request(kRequest, experts);
  }

  void tell(int layer, const dit::ForwardStats& stats) {
    if (!options_.progress) return;
    ProgressEvent event;
    event.stage = "denoise";
    event.step = step_;
    event.num_steps = plan_.schedule.steps;
    event.layer = layer;
    event.num_layers = static_cast<int>(experts_[0].config().num_layers);
    event.density = pairs_ + stats.pairs > 0.0 ? (computed_ + stats.computed_pairs) / (pairs_ + stats.pairs) : 1.0;
    event.seconds = since(start_);
    if (!options_.progress(event)) throw Cancelled("generate");
  }

  // Collects q, k and v of a layer, and passes them on once v, the last one, is there.
  void observe_attention(int layer, std::string_view name, const TensorView& view) {
    if (name != "q" && name != "k" && name != "v") return;
    const dit::TransformerConfig& model = experts_[0].config();
    (name == "q"   ? observed_.q
     : name == "k" ? observed_.k
                   : observed_.v) = view.reshape({1, view.size(0), model.num_heads, model.head_dim});
    if (name != "v") return;
    observed_.context.layer = layer;
    options_.attention_observer(observed_);
  }

  void observe_hidden(int layer, std::string_view name, const TensorView& view) {
    const bool after = name == "block" && layer + 1 == static_cast<int>(experts_[0].config().num_layers);
    if (!after && name != "patch_embed") return;
    options_.hidden_observer({observed_.context, after, view});
  }

  dit::ForwardInput input(double t, Branch branch) {
    timestep_ = static_cast<float>(t);
    const auto expert = static_cast<std::size_t>(plan_.expert(t));
    dit::ForwardInput in;
    in.latents = latents_.view().reshape({plan_.channels, plan_.latent_frames, plan_.latent_height, plan_.latent_width});
    in.timesteps = {&timestep_, 1};
    in.text = &text_[expert][branch == Branch::conditional ? 0 : 1];
    in.rope = rope_;
    in.context = plan_.context(step_, t, branch);
    return in;
  }

  void forward(const dit::Transformer& model, double t, Branch branch, const Tensor& velocity) {
    dit::ForwardInput in = input(t, branch);
    std::optional<CachedForward> cached;
    if (cache_.config().on()) in.cached = &cached.emplace(cache_.forward(kRequest, step_, branch, plan_.grid));
    observed_.context = in.context;
    const dit::ForwardStats stats = model.forward(in, velocity, session_, ws_, layer_begins_, probe_);
    pairs_ += stats.pairs;
    computed_ += stats.computed_pairs;
    report_.cross_attention_seconds += stats.cross_attention_seconds;
    reused_ += cached && cached->reused() ? 1 : 0;
  }

  void one_step() {
    const auto start = Clock::now();
    const double t = sampler_.schedule().timesteps[static_cast<std::size_t>(step_)];
    const int expert = plan_.expert(t);
    const dit::Transformer& model = experts_[static_cast<std::size_t>(expert)];
    pairs_ = computed_ = 0.0;
    reused_ = 0;
    forward(model, t, Branch::conditional, conditional_);
    const bool guided = plan_.guided(step_, expert);
    if (guided) {
      forward(model, t, Branch::unconditional, unconditional_);
      ops_.guide(conditional_, unconditional_, velocity_, static_cast<float>(plan_.guidance[static_cast<std::size_t>(expert)]));
    } else {
      convert(conditional_, velocity_);
    }
    if (!all_finite(velocity_)) explain_non_finite(model, t, "guided velocity");
    sampler_.step(step_, {velocity_.as<float>(), static_cast<std::size_t>(velocity_.numel())},
                  {latents_.as<float>(), static_cast<std::size_t>(latents_.numel())});
    if (!all_finite(latents_)) explain_non_finite(model, t, "latents after the solver");
    report_.steps.push_back({step_, expert, t, pairs_ > 0.0 ? computed_ / pairs_ : 1.0, since(start), guided ? 2 : 1, reused_});
  }

  // Runs the step's forwards again and looks at every intermediate result. `last` is what is to blame if they are all finite.
  [[noreturn]] void explain_non_finite(const dit::Transformer& model, double t, const char* last) {
    std::string first;
    std::string branch_name;
    const dit::Probe probe = [&](int layer, const char* name, const TensorView& view) {
      if (!first.empty() || all_finite(view)) return;
      first = std::string(name) + (layer >= 0 ? " of layer " + std::to_string(layer) : "");
    };
    for (const Branch branch : {Branch::conditional, Branch::unconditional}) {
      if (branch == Branch::unconditional && !plan_.guided(step_, plan_.expert(t))) break;
      branch_name = branch == Branch::conditional ? ", conditional" : ", unconditional";
      model.forward(input(t, branch), conditional_, session_, ws_, {}, probe);
      if (!first.empty()) break;
    }
    if (first.empty()) {
      first = last;
      branch_name.clear();
    }
    refuse("NaN or Inf in step " + std::to_string(step_) + ", expert " + std::to_string(plan_.expert(t)) + branch_name + ": first in " +
           first);
  }

  Workspace& ws_;
  const std::vector<dit::Transformer>& experts_;
  const dit::LinearContext& linear_;
  const GenerateOptions& options_;
  const Plan& plan_;
  dit::Ops ops_;
  AttentionSession session_;
  StepCache cache_;
  dit::Sampler sampler_;
  Tensor rope_, latents_, conditional_, unconditional_, velocity_;
  std::vector<std::array<dit::TextCache, 2>> text_;  // [expert][branch]
  std::function<void(int, const dit::ForwardStats&)> layer_begins_;
  dit::Probe probe_;          // empty without an observer
  AttentionInputs observed_;  // of the running forward
  GenerateReport report_;
  Clock::time_point start_;
  int step_ = 0;
  float timestep_ = 0.0F;
  double pairs_ = 0.0, computed_ = 0.0;  // of the running step
  int reused_ = 0;
};

}  // namespace

GenerateResult Engine::Impl::generate(const GenerateOptions& options) {
  const Plan plan = make_plan(config, options);
  const dit::TextRows text = text_rows(options, plan.guided_steps > 0);
  ws.reset();
  AttentionConfig attention = with_model_calibration(options.attention, directory, options.diagnostics);
  StepCacheConfig cache = with_model_calibration(options.cache, directory, options.diagnostics);
  Run run(ws, experts, linear, options, std::move(attention), std::move(cache), plan, text, start_latents(options, plan));
  run.denoise();
  GenerateResult result;
  result.report = std::move(run.report());
  result.latents = std::move(run.latents());
  if (codec) {
    if (options.progress) {
      ProgressEvent event;
      event.stage = "decode";
      event.num_layers = 1;
      if (!options.progress(event)) throw Cancelled("generate");
    }
    result.frames = codec->decode(result.latents);
  }
  return result;
}

Engine::Engine(const std::string& directory, const EngineOptions& options) : impl_(std::make_unique<Impl>(directory, options)) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;

bool Engine::has_codec() const { return impl_->codec.has_value(); }
int Engine::default_fps() const { return impl_->config.defaults.fps; }

Estimate Engine::estimate(const GenerateOptions& options) const {
  const Plan plan = make_plan(impl_->config, options);
  if (!options.latents.empty()) Impl::stored_latents(SafetensorsFile::open(options.latents), plan);
  const dit::TransformerConfig& model = impl_->config.transformer;
  const dit::Schedule schedule = dit::make_schedule(plan.schedule);
  Estimate estimate;
  estimate.forwards = plan.forwards(schedule);
  const auto forwards = static_cast<double>(estimate.forwards.size());
  for (const dit::Transformer& expert : impl_->experts) estimate.weight_bytes += expert.weight_bytes();
  estimate.tokens = plan.grid.tokens();
  estimate.timesteps = schedule.timesteps;
  estimate.high_noise_steps = dit::high_noise_steps(schedule, plan.boundary());
  estimate.attention_flops = forwards * dit::Transformer::attention_flops(model, estimate.tokens);
  estimate.linear_flops = forwards * dit::Transformer::linear_flops(model, estimate.tokens);
  estimate.workspace_bytes = impl_->experts[0].workspace_bytes(estimate.tokens);
  estimate.cache_bytes =
      StepCache::bytes_needed(options.cache, estimate.tokens, model.width(), impl_->experts[0].dtype(), plan.any_guided(schedule) ? 2 : 1);
  estimate.width = plan.width;
  estimate.height = plan.height;
  estimate.frames = plan.frames;
  estimate.solver = plan.schedule.solver;
  estimate.flow_shift = plan.schedule.shift;
  estimate.boundary_ratio = plan.boundary_ratio;
  return estimate;
}

void Engine::check_prompt(const std::string& prompt) const { impl_->encode(prompt); }

GenerateResult Engine::generate(const GenerateOptions& options) { return impl_->generate(options); }

}  // namespace winnow
