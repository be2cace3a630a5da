// Configuration, weights, text and codec of a model directory: what is accepted, and what is refused with which words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <numbers>

#include "core/json.h"
#include "core/numeric.h"
#include "core/random.h"
#include "core/safetensors.h"
#include "dit/codec.h"
#include "dit/config.h"
#include "dit/text.h"
#include "dit/weights.h"
#include "tests/support/temporary_folder.h"
#include "winnow/error.h"

namespace winnow::dit {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

template <class Body>
std::string refusal(Body&& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

class Model : public tests::FolderTest {
 protected:
  // winnow-tiny without its weights.
  void copy_tiny() const {
    const fs::path tiny = fs::path(WINNOW_SOURCE_DIR) / "models/winnow-tiny";
    for (const char* file :
         {"model_index.json", "winnow.json", "transformer/config.json", "transformer_2/config.json", "scheduler/scheduler_config.json",
          "text_encoder/config.json", "text_encoder/vocab.json", "text_encoder/embedding.safetensors", "vae/config.json"}) {
      fs::create_directories((folder() / file).parent_path());
      fs::copy_file(tiny / file, folder() / file, fs::copy_options::overwrite_existing);
    }
  }
  // One key of one file replaced; null removes it.
  void edit(const std::string& file, const std::string& key, const nlohmann::json& value) const {
    nlohmann::json json = nlohmann::json::parse(read_text_file(path(file), "test"));
    if (value.is_discarded()) {
      json.erase(key);
    } else {
      json[key] = value;
    }
    write(file, json.dump());
  }
  std::string load() const {
    return refusal([&] { load_model_config(folder().string()); });
  }
};
const nlohmann::json kRemoved(nlohmann::json::value_t::discarded);

TEST_F(Model, ReadsWinnowTiny) {
  copy_tiny();
  const ModelConfig config = load_model_config(folder().string());
  EXPECT_TRUE(config.index.two_experts());
  EXPECT_EQ(config.index.boundary_ratio, 0.875);
  EXPECT_EQ(config.transformer.width(), 256);
  EXPECT_EQ(config.scheduler.solver, Solver::euler);
  EXPECT_EQ(config.scheduler.flow_shift, 5.0);
  EXPECT_TRUE(config.text.runnable);
  EXPECT_EQ(config.text.max_length, 16);
  EXPECT_TRUE(config.codec.runnable);
  EXPECT_EQ(config.defaults.width, 96);
  EXPECT_EQ(config.defaults.frames, 33);
}

TEST_F(Model, MissingKeysAreTheConstructorsDefaults) {
  const TransformerConfig config = load_transformer_config(write("a.json", R"({"_class_name":"WanTransformer3DModel"})"));
  EXPECT_EQ(config, TransformerConfig());
  EXPECT_EQ(config.width(), 5120);
  EXPECT_EQ(load_transformer_config(write("a.json", R"({"in_channels":36,"out_channels":null})")).out_channels, 36);
  EXPECT_EQ(load_transformer_config(write("a.json", R"({"in_channels":36})")).out_channels, 16);
  const SchedulerConfig scheduler = load_scheduler_config(
      write("s.json", R"({"_class_name":"UniPCMultistepScheduler","prediction_type":"flow_prediction","use_flow_sigmas":true})"));
  EXPECT_EQ(scheduler.flow_shift, 1.0);
  EXPECT_EQ(scheduler.solver_order, 2);
}

TEST_F(Model, RefusesByFileAndKey) {
  struct Edit {
    const char* file;
    const char* key;
    nlohmann::json value;
    const char* expected;
  };
  const Edit edits[] = {
      {"model_index.json", "surprise", 1, "unknown key \"surprise\""},
      {"model_index.json", "_class_name", "FluxPipeline", "_class_name: expected WanPipeline"},
      {"model_index.json", "transformer", kRemoved, "transformer: missing"},
      {"model_index.json", "transformer", 7, "transformer: expected [library, class]"},
      {"model_index.json", "transformer", {"diffusers", "FluxTransformer2DModel"}, "expected WanTransformer3DModel"},
      {"model_index.json", "boundary_ratio", 1.5, "boundary_ratio: expected a number in [0.0,1.0]"},
      {"model_index.json", "boundary_ratio", "0.9", "boundary_ratio: expected a number"},
      {"model_index.json", "expand_timesteps", 1, "expand_timesteps: expected true or false"},
      {"transformer/config.json", "hidden", 1, "unknown key \"hidden\""},
      {"transformer/config.json", "num_layers", 0, "num_layers: expected an integer in [1,"},
      {"transformer/config.json", "num_layers", 1.5, "num_layers: expected an integer"},
      {"transformer/config.json", "num_layers", 18446744073709551615ULL, "num_layers: expected an integer"},
      {"transformer/config.json", "attention_head_dim", 127, "attention_head_dim: expected an even number"},
      {"transformer/config.json", "patch_size", {1, 2}, "patch_size: expected three integers"},
      {"transformer/config.json", "qk_norm", "rms_norm", "qk_norm: expected \"rms_norm_across_heads\""},
      {"transformer/config.json", "image_dim", 1280, "image_dim: expected null"},
      {"transformer_2/config.json", "ffn_dim", 512, "expected the same values as in transformer/config.json"},
      {"scheduler/scheduler_config.json", "_class_name", "DDIMScheduler", "_class_name: expected UniPC"},
      {"scheduler/scheduler_config.json", "_class_name", "UniPCMultistepScheduler", "as in model_index.json"},
      {"scheduler/scheduler_config.json", "shift", 4.0, "shift and flow_shift differ"},
      {"scheduler/scheduler_config.json", "use_dynamic_shifting", true, "use_dynamic_shifting: expected false"},
      {"scheduler/scheduler_config.json", "eta", 0, "unknown key \"eta\""},
      {"text_encoder/config.json", "embedding_dim", 32, "embedding_dim: expected the transformer's text_dim 64"},
      {"text_encoder/config.json", "max_length", kRemoved, "max_length: missing"},
      {"vae/config.json", "latents_std", {1.0}, "latents_std: expected 48 numbers"},
      {"vae/config.json", "z_dim", 16, "expected z_dim = 3 block_size^2"},
      {"vae/config.json", "scale_factor_spatial", 8, "scale_factor_spatial = block_size"},
      {"winnow.json", "fps", kRemoved, "fps: missing"},
  };
  for (const Edit& e : edits) {
    copy_tiny();
    edit(e.file, e.key, e.value);
    EXPECT_THAT(load(), AllOf(HasSubstr(e.file), HasSubstr(e.expected))) << e.file << " " << e.key;
  }
  copy_tiny();
  fs::remove(path("vae/config.json"));
  EXPECT_THAT(load(), HasSubstr("vae/config.json: cannot open"));
  copy_tiny();
  write("model_index.json", "{");
  EXPECT_THAT(load(), HasSubstr("model_index.json: not valid JSON"));
  EXPECT_THAT(refusal([&] { load_model_config(path("missing")); }), HasSubstr("not a directory"));
}

TEST_F(Model, LinksThatLeadToThemselves) {
  for (const char* file : {"model_index.json", "winnow.json", "transformer/diffusion_pytorch_model.safetensors"}) {
    copy_tiny();
    fs::remove(path(file));
    fs::create_symlink(fs::path(file).filename(), path(file));
    const std::string text = std::string(file).find("transformer") == 0 ? refusal([&] { WeightFiles(path("transformer")); }) : load();
    EXPECT_THAT(text, AllOf(HasSubstr(file), HasSubstr("cannot open"))) << file;
    fs::remove(path(file));
  }
  fs::create_symlink("loop", path("loop"));
  EXPECT_THAT(refusal([&] { load_model_config(path("loop")); }), HasSubstr("loop: not a directory"));
}

TEST_F(Model, LoadsComponentsThatItCannotRun) {
  copy_tiny();
  edit("model_index.json", "text_encoder", {"transformers", "UMT5EncoderModel"});
  edit("model_index.json", "vae", {"diffusers", "AutoencoderKLWan"});
  write("text_encoder/config.json", R"({"architectures":["UMT5EncoderModel"],"d_model":4096})");
  write("vae/config.json", R"({"_class_name":"AutoencoderKLWan","z_dim":48,"base_dim":160,"scale_factor_spatial":16})");
  const ModelConfig config = load_model_config(folder().string());
  EXPECT_FALSE(config.text.runnable);
  EXPECT_EQ(config.text.class_name, "UMT5EncoderModel");
  EXPECT_FALSE(config.codec.runnable);
  EXPECT_EQ(config.codec.scale_factor_spatial, 16);
  EXPECT_EQ(config.codec.scale_factor_temporal, 4);
}

TEST_F(Model, DefaultSizes) {
  copy_tiny();
  fs::remove(path("winnow.json"));
  EXPECT_EQ(load_model_config(folder().string()).defaults.width, 832);
  edit("model_index.json", "expand_timesteps", true);
  EXPECT_EQ(load_model_config(folder().string()).defaults.frames, 121);
}

TEST_F(Model, WordsOfAPrompt) {
  copy_tiny();
  const ModelConfig config = load_model_config(folder().string());
  const WordEmbedding words(path("text_encoder"), config.text);
  const Tensor a = words.encode("  A\tlarge RED ball ");
  const Tensor b = words.encode("a large red ball");
  EXPECT_EQ(std::memcmp(a.view().data, b.view().data, a.bytes()), 0);
  EXPECT_EQ(a.view().describe(), "[16,64] f32");
  for (std::int64_t i = 4 * 64; i < 16 * 64; ++i) EXPECT_EQ(a.as<float>()[i], 0.0F);
  EXPECT_NE(a.as<float>()[3 * 64], 0.0F);
  EXPECT_THAT(refusal([&] { words.encode("a huge red zebra"); }), HasSubstr("\"huge\", \"zebra\""));
  EXPECT_THAT(refusal([&] { words.encode("<pad>"); }), HasSubstr("<pad>"));
  EXPECT_THAT(refusal([&] { words.encode("a a a a a a a a a a a a a a a a a"); }), HasSubstr("at most 16 words, got 17"));
}

TEST_F(Model, PromptEmbeds) {
  Tensor rows(DType::bf16, {1, 4, 8});
  const NamedTensor good[] = {{"prompt_embeds", rows}, {"negative_prompt_embeds", rows.view().reshape({4, 8})}};
  write_safetensors(path("e"), good);
  EXPECT_EQ(load_prompt_embeds(path("e"), 8, true).negative.view().describe(), "[4,8] f32");
  EXPECT_THAT(refusal([&] { load_prompt_embeds(path("e"), 9, true); }), HasSubstr("prompt_embeds: expected [L,9], got [1,4,8] bf16"));
  const NamedTensor one[] = {{"prompt_embeds", rows}};
  write_safetensors(path("e"), one);
  EXPECT_TRUE(load_prompt_embeds(path("e"), 8, false).negative.empty());
  EXPECT_THAT(refusal([&] { load_prompt_embeds(path("e"), 8, true); }), HasSubstr("no tensor named negative_prompt_embeds"));
  const Tensor integers(DType::i32, {4, 8});
  const NamedTensor wrong[] = {{"prompt_embeds", integers}};
  write_safetensors(path("e"), wrong);
  EXPECT_THAT(refusal([&] { load_prompt_embeds(path("e"), 8, false); }), AllOf(HasSubstr(path("e")), HasSubstr("got [4,8] i32")));
  rows.as<bf16>()[5] = to_bf16(std::numeric_limits<float>::infinity());
  write_safetensors(path("e"), one);
  EXPECT_THAT(refusal([&] { load_prompt_embeds(path("e"), 8, false); }), HasSubstr("NaN or Inf"));
}

TEST_F(Model, WeightsByFileAndKey) {
  Tensor a(DType::f32, {2, 3});
  Tensor b(DType::bf16, {4});
  Tensor c(DType::i32, {4});
  const std::string file = path("diffusion_pytorch_model.safetensors");
  const auto open = [&] { return WeightFiles(folder().string()); };
  EXPECT_THAT(refusal([&] { open(); }), HasSubstr("expected diffusion_pytorch_model.safetensors or"));
  const NamedTensor tensors[] = {{"a", a}, {"b", b}, {"c", c}};
  write_safetensors(file, tensors);
  WeightFiles files = open();
  EXPECT_EQ(files.take("b", {4}, DType::f32).view().describe(), "[4] f32");
  EXPECT_THAT(refusal([&] { files.take("missing", {4}, DType::f32); }), AllOf(HasSubstr(file), HasSubstr("missing tensor missing [4]")));
  EXPECT_THAT(refusal([&] { files.take("a", {3, 2}, DType::f32); }), AllOf(HasSubstr(file), HasSubstr("a: expected [3,2], got [2,3] f32")));
  EXPECT_THAT(refusal([&] { files.take("c", {4}, DType::f32); }), HasSubstr("c: expected f32, f16 or bf16, got i32"));
  EXPECT_THAT(refusal([&] { files.finish("#"); }), HasSubstr("unexpected tensors: a, c"));
  EXPECT_THAT(refusal([&] { files.finish("c"); }), HasSubstr("unexpected tensors: a"));
  a.as<float>()[4] = std::numeric_limits<float>::quiet_NaN();
  write_safetensors(file, tensors);
  EXPECT_THAT(refusal([&] { open().take("a", {2, 3}, DType::bf16); }), HasSubstr("a: contains NaN or Inf"));
  a.as<float>()[4] = std::numeric_limits<float>::max();  // finite, but not as bf16
  write_safetensors(file, tensors);
  EXPECT_EQ(refusal([&] { open().take("a", {2, 3}, DType::f32); }), "accepted");
  EXPECT_THAT(refusal([&] { open().take("a", {2, 3}, DType::bf16); }), HasSubstr("contains NaN or Inf as bf16"));
}

TEST_F(Model, ShardsAndTheirIndex) {
  Tensor a(DType::f16, {2});
  const NamedTensor first[] = {{"a", a}};
  const NamedTensor second[] = {{"b", a}, {"c", a}};
  write_safetensors(path("s1.safetensors"), first);
  write_safetensors(path("s2.safetensors"), second);
  const auto with_index = [&](const std::string& map) {
    write("diffusion_pytorch_model.safetensors.index.json", R"({"metadata":{},"weight_map":)" + map + "}");
    return refusal([&] { WeightFiles(folder().string()).take("b", {2}, DType::f32); });
  };
  EXPECT_EQ(with_index(R"({"a":"s1.safetensors","b":"s2.safetensors","c":"s2.safetensors"})"), "accepted");
  EXPECT_THAT(with_index(R"({"a":"s1.safetensors","b":"s2.safetensors"})"), HasSubstr("s2.safetensors: c: not placed there"));
  EXPECT_THAT(with_index(R"({"a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors"})"), HasSubstr("no tensor named b"));
  EXPECT_THAT(with_index(R"({"a":"s1.safetensors","b":"s3.safetensors","c":"s2.safetensors"})"), HasSubstr("s3.safetensors: cannot open"));
  EXPECT_THAT(with_index(R"({"a":"../s1.safetensors"})"), HasSubstr("without folders"));
  EXPECT_THAT(with_index(R"({"a":".."})"), HasSubstr("without folders"));
  EXPECT_THAT(with_index(R"({"a":1})"), HasSubstr("expected a file name"));
  EXPECT_THAT(with_index("[]"), HasSubstr("weight_map: expected an object"));
}

// Pixels to coefficients by the transposed basis, then back.
TEST(Codec, InvertsTheTransform) {
  CodecConfig config;
  config.runnable = true;
  config.z_dim = 48;
  config.block_size = 4;
  for (int i = 0; i < 48; ++i) {
    config.latents_mean.push_back(0.1F * static_cast<float>(i));
    config.latents_std.push_back(0.5F + 0.01F * static_cast<float>(i));
  }
  std::vector<float> pixels(2 * 8 * 12 * 3);
  fill_uniform(pixels, 1);
  Tensor latents(DType::f32, {1, 48, 2, 2, 3});
  for (int f = 0; f < 2; ++f) {
    for (int by = 0; by < 2; ++by) {
      for (int bx = 0; bx < 3; ++bx) {
        for (int channel = 0; channel < 48; ++channel) {
          const int ky = channel % 16 / 4;
          const int kx = channel % 4;
          double sum = 0.0;
          for (int y = 0; y < 4; ++y) {
            for (int x = 0; x < 4; ++x) {
              const double p =
                  2.0 * static_cast<double>(pixels[static_cast<std::size_t>(((f * 8 + by * 4 + y) * 12 + bx * 4 + x) * 3 + channel / 16)]) -
                  1.0;
              const auto basis = [](int k, int n) {
                return (k == 0 ? 0.5 : std::numbers::sqrt2 / 2) * std::cos(std::numbers::pi * (2 * n + 1) * k / 8);
              };
              sum += basis(ky, y) * basis(kx, x) * p;
            }
          }
          const auto c = static_cast<std::size_t>(channel);
          latents.as<float>()[((channel * 2 + f) * 2 + by) * 3 + bx] =
              (static_cast<float>(sum) - config.latents_mean[c]) / config.latents_std[c];
        }
      }
    }
  }
  const BlockDctCodec codec(config);
  const Tensor frames = codec.decode(latents);
  EXPECT_EQ(frames.view().describe(), "[2,8,12,3] f32");
  for (std::size_t i = 0; i < pixels.size(); ++i) ASSERT_NEAR(frames.as<float>()[i], pixels[i], 1e-6);
  for (std::int64_t i = 0; i < latents.numel(); ++i) latents.as<float>()[i] = 1e6F;
  const Tensor bright = codec.decode(latents);
  for (std::int64_t i = 0; i < bright.numel(); ++i) ASSERT_TRUE(bright.as<float>()[i] >= 0.0F && bright.as<float>()[i] <= 1.0F);
  EXPECT_THROW(codec.decode(Tensor(DType::f32, {1, 47, 2, 2, 3})), Error);
}

}  // namespace
}  // namespace winnow::dit
