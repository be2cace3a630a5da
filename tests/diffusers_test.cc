// The engine against what the diffusers library computes with the model in tests/fixtures/wan-diffusers.
#include <gmock/gmock.h>

#include <cmath>

#include "dit/config.h"
#include "dit/scheduler.h"
#include "engine_testing.h"
#include "winnow/engine.h"

namespace winnow {
namespace {

using testing::ForwardCase;
using testing::source;
using testing::squeeze;
using testing::TemporaryFolder;

const std::string kModel = "tests/fixtures/wan-diffusers/model";

const SafetensorsFile& expected() {
  static const auto file = SafetensorsFile::open(source("tests/fixtures/wan-diffusers/expected.safetensors"));
  return file;
}

double tolerance(Precision precision) { return precision == Precision::bf16 ? 1.5e-2 : 1e-4; }
std::string label(Precision precision) { return precision == Precision::bf16 ? "bf16" : "f32"; }

class Diffusers : public ::testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(Precision, Diffusers, ::testing::Values(Precision::f32, Precision::bf16),
                         [](const auto& test) { return label(test.param); });

TEST_P(Diffusers, Forward) {
  const dit::TransformerConfig config = dit::load_transformer_config(source(kModel + "/transformer/config.json"));
  for (const std::string name : {"high", "low", "per_token"}) {
    dit::LinearContext linear;
    const std::string folder = name == "low" ? "/transformer_2" : "/transformer";
    const dit::Transformer model(source(kModel + folder), config, GetParam(), linear);
    const std::string inputs = std::string("forward.") + (name == "low" ? "low." : "high.");
    ForwardCase forward;
    forward.latents = squeeze(expected().at(inputs + "latent"), 4);
    forward.text = squeeze(expected().at(inputs + "text"), 2);
    forward.timesteps = {*expected().at(inputs + "timestep").as<float>()};
    if (name == "per_token") {  // 0 on the first frame, else one value
      const TensorView t = expected().at("forward.per_token.timestep");
      forward.timesteps = {0.0F, t.as<float>()[t.numel() - 1]};
      for (std::int64_t i = 0; i < t.numel(); ++i) forward.timestep_of_token.push_back(t.as<float>()[i] == 0.0F ? 0 : 1);
    }
    const std::string outputs = "forward." + name + "." + label(GetParam()) + ".";
    forward.probe = [&](int layer, const char* what, const TensorView& view) {
      if (layer == 0 && std::string(what) == "block") {
        EXPECT_LT(rel_l2(view, squeeze(expected().at(outputs + "block0"), 2)), tolerance(GetParam())) << outputs;
      }
    };
    const double error = rel_l2(testing::forward(model, forward), squeeze(expected().at(outputs + "velocity"), 4));
    EXPECT_LT(error, tolerance(GetParam())) << outputs;
    RecordProperty(name + "_rel_l2", std::to_string(error));
  }
}

void expect_schedule(const dit::Schedule& schedule, const std::string& name) {
  const TensorView sigmas = expected().at(name + ".sigmas");
  const TensorView timesteps = expected().at(name + ".timesteps");
  ASSERT_EQ(static_cast<std::int64_t>(schedule.sigmas.size()), sigmas.numel()) << name;
  ASSERT_EQ(static_cast<std::int64_t>(schedule.timesteps.size()), timesteps.numel()) << name;
  for (std::size_t i = 0; i < schedule.sigmas.size(); ++i) {
    EXPECT_NEAR(schedule.sigmas[i], sigmas.as<float>()[i], 1.2e-7) << name << " " << i;
  }
  for (std::size_t i = 0; i < schedule.timesteps.size(); ++i) {
    if (timesteps.dtype == DType::i64) {
      EXPECT_EQ(schedule.timesteps[i], static_cast<double>(timesteps.as<std::int64_t>()[i])) << name << " " << i;
    } else {
      EXPECT_NEAR(schedule.timesteps[i], static_cast<double>(timesteps.as<float>()[i]), 1.3e-4) << name << " " << i;
    }
  }
}

TEST(DiffusersSchedule, UniPC) {
  int compared = 0;
  for (const auto& [mode, formula] : {std::pair(SigmaMode::diffusers, "new"), std::pair(SigmaMode::wan, "old")}) {
    for (const auto& [steps, shift] : {std::pair(40, 12), {50, 5}, {30, 3}, {20, 5}, {4, 5}, {1, 5}}) {
      dit::ScheduleOptions options;
      options.steps = steps;
      options.shift = shift;
      options.sigma_mode = mode;
      expect_schedule(dit::make_schedule(options),
                      std::string("unipc.") + formula + ".steps" + std::to_string(steps) + "_shift" + std::to_string(shift));
      ++compared;
    }
  }
  EXPECT_EQ(compared, 12);
}

TEST(DiffusersSchedule, Euler) {
  for (const int steps : {30, 50, 4}) {
    dit::ScheduleOptions options;
    options.solver = Solver::euler;
    options.steps = steps;
    options.shift = 5.0;
    const std::string name = ".steps" + std::to_string(steps) + "_shift5";
    expect_schedule(dit::make_schedule(options), "euler.single_shift_1000" + name);
    options.euler_double_shift = true;
    expect_schedule(dit::make_schedule(options), "euler.double_shift" + name);
  }
}

// The solvers alone, with given velocities. Winnow keeps latents and scalars in f32 also for bf16 velocities; the bf16
// trajectories of a CPU round the scalar to bf16 before the product, and Euler's latents too.
TEST(DiffusersTrajectory, BothSolvers) {
  const TensorView start = expected().at("trajectory.start");
  const TensorView velocities = expected().at("trajectory.velocities");
  const std::int64_t n = start.numel();
  for (const Solver solver : {Solver::unipc, Solver::euler}) {
    const std::string name = std::string("trajectory.") + (solver == Solver::unipc ? "unipc" : "euler");
    dit::ScheduleOptions options;
    options.solver = solver;
    options.steps = 10;
    options.shift = 5.0;
    options.euler_double_shift = solver == Solver::euler;
    dit::Sampler sampler(options, static_cast<std::size_t>(n));
    expect_schedule(sampler.schedule(), name);
    std::vector<float> x(start.as<float>(), start.as<float>() + n);
    for (int step = 0; step < options.steps; ++step) {
      sampler.step(step, {velocities.as<float>() + step * n, static_cast<std::size_t>(n)}, x);
      const TensorView ours(x.data(), DType::f32, {n});
      const auto reference = [&](const char* dtype) {
        return expected().at(name + "." + dtype + ".samples").slice(0, step, step + 1).reshape({n});
      };
      EXPECT_LT(rel_l2(ours, reference("f32")), 1e-6) << name << " " << step;
      EXPECT_LT(rel_l2(ours, reference("bf16")), 1.5e-2) << name << " " << step;
    }
  }
}

struct Loop {
  const char* name;
  Precision precision;
  double guidance, guidance_2;
  std::optional<double> shift;
  std::optional<Solver> solver;
  bool expand_timesteps;
};

// A copy of the model's folder that is TI2V-like: one expert, expand_timesteps.
void make_single_expert(const TemporaryFolder& folder) {
  testing::fs::copy(source(kModel), folder.path(), testing::fs::copy_options::recursive);
  testing::write_text(folder / "model_index.json", R"({"_class_name": "WanPipeline", "boundary_ratio": null, "expand_timesteps": true,
    "scheduler": ["diffusers", "UniPCMultistepScheduler"], "transformer": ["diffusers", "WanTransformer3DModel"],
    "transformer_2": [null, null], "text_encoder": [null, null], "tokenizer": [null, null], "vae": [null, null]})");
}

TEST(DiffusersLoop, AllPipelines) {
  const Loop loops[] = {{"unipc", Precision::f32, 4.0, 3.0, {}, {}, false},
                        {"unipc_no_guidance", Precision::f32, 1.0, 3.0, {}, {}, false},
                        {"euler", Precision::f32, 4.0, 3.0, 5.0, Solver::euler, false},
                        {"expand_timesteps", Precision::f32, 5.0, 0.0, 5.0, {}, true},
                        {"unipc_bf16", Precision::bf16, 4.0, 3.0, {}, {}, false},
                        {"euler_bf16", Precision::bf16, 4.0, 3.0, 5.0, Solver::euler, false}};
  const TemporaryFolder folder;
  const NamedTensor embeds[] = {{"prompt_embeds", expected().at("loop.prompt_embeds")},
                                {"negative_prompt_embeds", expected().at("loop.negative_prompt_embeds")}};
  write_safetensors(folder / "embeds.safetensors", embeds);
  const NamedTensor noise[] = {{"latents", expected().at("loop.latents")}};
  write_safetensors(folder / "noise.safetensors", noise);
  for (const Loop& loop : loops) {
    const std::string name = std::string("loop.") + loop.name;
    const TemporaryFolder single;
    if (loop.expand_timesteps) make_single_expert(single);
    Engine engine(loop.expand_timesteps ? single.path().string() : source(kModel), {.precision = loop.precision, .progress = {}});
    EXPECT_FALSE(engine.has_codec());
    GenerateOptions options;
    options.prompt_embeds = folder / "embeds.safetensors";
    options.latents = folder / "noise.safetensors";
    options.steps = 12;
    options.width = 64;
    options.height = 48;
    options.frames = 9;
    options.guidance_scale = loop.guidance;
    if (!loop.expand_timesteps) options.guidance_scale_2 = loop.guidance_2;
    options.flow_shift = loop.shift;
    options.solver = loop.solver;
    options.euler_double_shift = loop.solver == Solver::euler;
    const Estimate estimate = engine.estimate(options);
    EXPECT_EQ(estimate.tokens, 36);
    int layers = 0;
    std::vector<int> per_step(12, 0);
    options.progress = [&](const ProgressEvent& event) {
      ++per_step[static_cast<std::size_t>(event.step)];
      ++layers;
      return true;
    };
    const GenerateResult result = engine.generate(options);
    EXPECT_TRUE(result.frames.empty());
    const TensorView experts = expected().at(name + ".expert");
    const TensorView calls = expected().at(name + ".calls");
    ASSERT_EQ(result.report.steps.size(), 12U);
    for (std::size_t i = 0; i < 12; ++i) {
      EXPECT_EQ(result.report.steps[i].expert, experts.as<std::int32_t>()[i]) << name << " " << i;
      EXPECT_EQ(per_step[i], 2 * calls.as<std::int32_t>()[i]) << name << " " << i;  // two layers a forward
      const TensorView t = expected().at(name + ".timesteps");
      EXPECT_NEAR(result.report.steps[i].timestep, t.dtype == DType::i64 ? static_cast<double>(t.as<std::int64_t>()[i]) : t.as<float>()[i],
                  1.3e-4);
    }
    const TensorView after = expected().at(name + ".latents_after");
    const TensorView last = squeeze(after.slice(0, 11, 12), 5);
    const double error = rel_l2(result.latents, last);
    EXPECT_LT(error, tolerance(loop.precision)) << name;
    RecordProperty(std::string(loop.name) + "_rel_l2", std::to_string(error));
  }
}

}  // namespace
}  // namespace winnow
