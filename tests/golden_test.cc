// The transformer and whole generations against tensors of a plain torch implementation (tests/golden/README.md).
#include <gmock/gmock.h>

#include <cmath>

#include "dit/codec.h"
#include "engine_testing.h"
#include "winnow/engine.h"
#include "winnow/error.h"

namespace winnow {
namespace {

using testing::ForwardCase;
using testing::source;
using testing::squeeze;
using testing::TemporaryFolder;

SafetensorsFile golden(const std::string& name) { return SafetensorsFile::open(source("tests/golden/" + name)); }

dit::TransformerConfig tiny_config() {
  dit::TransformerConfig config;
  config.num_heads = 2;
  config.head_dim = 12;
  config.in_channels = config.out_channels = 4;
  config.text_dim = 32;
  config.ffn_dim = 32;
  config.num_layers = 2;
  return config;
}

class TinyRandom : public ::testing::TestWithParam<Precision> {
 protected:
  TinyRandom() : file_(golden("tiny_random.safetensors")) {
    std::vector<Tensor> copies;
    std::vector<NamedTensor> tensors;
    const std::string prefix = "weights.";
    for (const std::string& key : file_.keys()) {
      if (key.substr(0, prefix.size()) == prefix) tensors.push_back({key.substr(prefix.size()), file_.at(key)});
    }
    write_safetensors(folder_ / "diffusion_pytorch_model.safetensors", tensors);
    model_.emplace(folder_.path(), tiny_config(), GetParam(), linear_);
  }
  std::string label() const { return GetParam() == Precision::bf16 ? "bf16" : "f32"; }
  ForwardCase make_case(int c) const {
    const std::string name = "case" + std::to_string(c) + ".";
    ForwardCase forward;
    forward.latents = squeeze(file_.at(name + "latent"), 4);
    forward.text = squeeze(file_.at(name + "text"), 2);
    forward.timesteps = {*file_.at(name + "timestep").as<float>()};
    return forward;
  }

  SafetensorsFile file_;
  TemporaryFolder folder_;
  dit::LinearContext linear_;
  std::optional<dit::Transformer> model_;
};
INSTANTIATE_TEST_SUITE_P(Golden, TinyRandom, ::testing::Values(Precision::f32, Precision::bf16),
                         [](const auto& test) { return test.param == Precision::bf16 ? "bf16" : "f32"; });

TEST_P(TinyRandom, EverySubmodule) {
  const bool bf16 = GetParam() == Precision::bf16;
  const double tolerance = bf16 ? 1.5e-2 : 1e-4;
  for (int c = 0; c < 2; ++c) {
    const std::string name = "case" + std::to_string(c) + "." + label() + ".";
    int compared = 0;
    double worst = 0.0;
    ForwardCase forward = make_case(c);
    forward.probe = [&](int layer, const char* what, const TensorView& view) {
      static const std::map<std::string, std::string> names{{"temb", "temb_embed"}, {"tproj", "tproj_embed"}};
      const auto renamed = names.find(what);
      std::string key = name + (renamed == names.end() ? what : renamed->second);
      if (layer >= 0) key = name + "block" + std::to_string(layer) + (std::string(what) == "block" ? "" : std::string(".") + what);
      if (!file_.contains(key)) return;
      const TensorView expected = file_.at(key);
      const TensorView flat = expected.reshape({view.size(0), expected.numel() / view.size(0)});
      const double error = rel_l2(view.reshape({view.size(0), view.numel() / view.size(0)}), flat);
      EXPECT_LT(error, tolerance) << key;
      worst = std::max(worst, error);
      ++compared;
    };
    const Tensor velocity = testing::forward(*model_, forward);
    EXPECT_EQ(compared, 12);
    const double error = rel_l2(velocity, squeeze(file_.at(name + "velocity"), 4));
    EXPECT_LT(error, tolerance);
    RecordProperty("case" + std::to_string(c) + "_velocity_rel_l2", std::to_string(error));
    RecordProperty("case" + std::to_string(c) + "_worst_rel_l2", std::to_string(worst));
  }
}

// In f32 alone: rounding to bf16 is far above the time embedding's share.
class TinyRandomF32 : public TinyRandom {};
INSTANTIATE_TEST_SUITE_P(Golden, TinyRandomF32, ::testing::Values(Precision::f32), [](const auto&) { return "f32"; });
TEST_P(TinyRandomF32, GivenTheTimeEmbedding) {
  for (int c = 0; c < 2; ++c) {
    const std::string name = "case" + std::to_string(c) + ".";
    ForwardCase forward = make_case(c);
    forward.temb = file_.at(name + "f32.temb_embed");
    EXPECT_LT(rel_l2(testing::forward(*model_, forward), squeeze(file_.at(name + "f32.velocity"), 4)), 1e-5);
  }
}

// One forward of an expert of winnow-tiny at the latents of a file.
double forward_error(const std::string& file_name, const std::string& prefix, const std::string& velocity, const std::string& text,
                     const std::string& expert, Precision precision) {
  const auto file = golden(file_name);
  dit::LinearContext linear;
  const dit::Transformer model(source("models/winnow-tiny/" + expert),
                               dit::load_transformer_config(source("models/winnow-tiny/" + expert + "/config.json")), precision, linear);
  ForwardCase forward;
  const Tensor latents = file.copy(prefix + "latent", DType::f32);
  forward.latents = squeeze(latents, 4);
  const Tensor rows = file.copy(text, DType::f32);
  forward.text = squeeze(rows, 2);
  forward.timesteps = {*file.at(prefix + "timestep").as<float>()};
  const Tensor stored = file.copy(velocity, DType::f32);
  const TensorView expected = squeeze(stored, 4);
  const Tensor result = testing::forward(model, forward);
  TensorView kept = result.view();
  const std::int64_t every = kept.size(1) == expected.size(1) ? 1 : 4;  // large files keep latent frames 0, 4, ...
  kept.shape[1] = expected.size(1);
  kept.strides[1] *= every;
  return rel_l2(kept, expected);
}

// Two correct bf16 forwards of the trained model differ by 1.1 to 1.7 % (tests/golden/README.md): each has its own rounding
// errors against f32, which are compared below.
constexpr double kBf16SmallGridTolerance = 2.5e-2;
constexpr double kBf16FullGridTolerance = 1.5e-2;

TEST(GoldenForward, SmallGrid) {
  for (const std::string expert : {"high", "low"}) {
    for (const std::string branch : {"cond", "uncond"}) {
      const std::string folder = expert == "high" ? "transformer" : "transformer_2";
      const std::string text = branch == "cond" ? "text.positive" : "text.negative";
      const std::string name = expert + "." + branch + ".";
      const double f32 =
          forward_error("small_forward_and_generation.safetensors", expert + ".", name + "f32.velocity", text, folder, Precision::f32);
      EXPECT_LT(f32, 1e-4) << name;
      const double bf16 =
          forward_error("small_forward_and_generation.safetensors", expert + ".", name + "bf16.velocity", text, folder, Precision::bf16);
      EXPECT_LT(bf16, kBf16SmallGridTolerance) << name;
      RecordProperty(expert + "_" + branch + "_f32_rel_l2", std::to_string(f32));
      RecordProperty(expert + "_" + branch + "_bf16_rel_l2", std::to_string(bf16));
    }
  }
}

// Together over the four cases: a single one scatters by 7 % with arithmetic of equal quality (the instruction set, gelu exact
// or within 3e-6), as the first rounding that differs decides; the four together by 2 %, from 1.08 to 1.11 of the golden's.
TEST(GoldenForward, Bf16IsAsCloseToF32AsTheGoldenBf16) {
  const auto file = golden("small_forward_and_generation.safetensors");
  double ours = 0.0;
  double golden_bf16 = 0.0;
  for (const std::string name : {"high.cond.", "high.uncond.", "low.cond.", "low.uncond."}) {
    const std::string expert = name.substr(0, name.find('.') + 1);
    const std::string text = name.find("uncond") == std::string::npos ? "text.positive" : "text.negative";
    const double error = forward_error("small_forward_and_generation.safetensors", expert, name + "f32.velocity", text,
                                       expert == "high." ? "transformer" : "transformer_2", Precision::bf16);
    const double expected = rel_l2(file.at(name + "bf16.velocity"), file.at(name + "f32.velocity"));
    RecordProperty(name + "ours", std::to_string(error));
    RecordProperty(name + "golden", std::to_string(expected));
    ours += error * error;
    golden_bf16 += expected * expected;
  }
  EXPECT_LT(std::sqrt(ours), 1.15 * std::sqrt(golden_bf16));
}

TEST(GoldenForward, FullGrid) {
  for (const std::string expert : {"high", "low"}) {
    const std::string file = "full_forward_" + expert + ".safetensors";
    const std::string folder = expert == "high" ? "transformer" : "transformer_2";
    const double f32 = forward_error(file, "", "velocity_f32.frames_by_4", "text", folder, Precision::f32);
    EXPECT_LT(f32, 1e-4) << expert;
    const double bf16 = forward_error(file, "", "velocity_bf16.frames_by_4", "text", folder, Precision::bf16);
    EXPECT_LT(bf16, kBf16FullGridTolerance) << expert;
    RecordProperty(expert + "_f32_rel_l2", std::to_string(f32));
    RecordProperty(expert + "_bf16_rel_l2", std::to_string(bf16));
  }
}

// Frames as float in [0,1] from the stored bytes.
Tensor float_frames(const TensorView& bytes) {
  Tensor out(DType::f32, bytes.shape.data(), bytes.rank);
  for (std::int64_t i = 0; i < out.numel(); ++i) out.as<float>()[i] = static_cast<float>(bytes.as<std::uint8_t>()[i]) / 255.0F;
  return out;
}
// Our frames after the same rounding to bytes.
Tensor rounded_frames(const Tensor& frames) {
  Tensor out(DType::f32, frames.view().shape.data(), frames.view().rank);
  for (std::int64_t i = 0; i < out.numel(); ++i) out.as<float>()[i] = std::nearbyint(frames.as<float>()[i] * 255.0F) / 255.0F;
  return out;
}

struct Generation {
  double final_rel_l2 = 0.0;
  double psnr_db = 0.0;
};

Generation generate(const std::string& file_name, const std::string& prefix, std::int64_t size, std::int64_t frames, Precision precision) {
  const auto file = golden(file_name);
  const TemporaryFolder folder;
  const NamedTensor noise[] = {{"latents", file.at(prefix + "noise")}};
  write_safetensors(folder / "noise.safetensors", noise);
  Engine engine(source("models/winnow-tiny"), {.precision = precision, .progress = {}});
  GenerateOptions options;
  options.prompt = "a large red ball moving right over a checkered navy background";
  options.latents = folder / "noise.safetensors";
  options.width = options.height = size;
  options.frames = frames;
  const GenerateResult result = engine.generate(options);
  EXPECT_EQ(result.report.high_noise_steps, 13);
  const double error = file.contains(prefix + "final") ? rel_l2(result.latents, file.at(prefix + "final")) : 0.0;
  return {error, psnr(rounded_frames(result.frames), float_frames(file.at(prefix + "frames")))};
}

TEST(GoldenGeneration, SmallF32) {
  const Generation g = generate("small_forward_and_generation.safetensors", "gen.", 48, 9, Precision::f32);
  RecordProperty("final_rel_l2", std::to_string(g.final_rel_l2));
  RecordProperty("psnr_db", std::to_string(g.psnr_db));
  EXPECT_LT(g.final_rel_l2, 1e-3);
  EXPECT_GT(g.psnr_db, 50.0);
}

TEST(GoldenGeneration, SmallBf16) {
  const Generation g = generate("small_forward_and_generation.safetensors", "gen.", 48, 9, Precision::bf16);
  RecordProperty("final_rel_l2", std::to_string(g.final_rel_l2));
  RecordProperty("psnr_db", std::to_string(g.psnr_db));
  EXPECT_GT(g.psnr_db, 30.0);
}

// About two minutes on two cores.
TEST(GoldenGeneration, FullF32) {
  const Generation g = generate("full_generation.safetensors", "", 96, 33, Precision::f32);
  RecordProperty("psnr_db", std::to_string(g.psnr_db));
  EXPECT_GT(g.psnr_db, 50.0);
}

}  // namespace
}  // namespace winnow
