// Models with the key names and dimensions of the released Wan checkpoints, cut in depth and width and filled with random
// weights: what loads, what runs, and that a run is finite.
#include <gmock/gmock.h>

#include <cmath>

#include "core/numeric.h"
#include "core/random.h"
#include "engine_testing.h"
#include "winnow/engine.h"
#include "winnow/error.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryFolder;
using testing::write_text;

struct Shape {
  std::int64_t heads = 2, layers = 2, ffn_dim = 96;  // released: 12..40 heads, 30..40 layers
  std::int64_t in_channels = 16, out_channels = 16;
  std::int64_t text_dim = 4096;
};

// Random values whose size keeps activations of order 1.
class Writer {
 public:
  Writer(std::uint64_t seed, DType dtype) : seed_(seed), dtype_(dtype) {}
  void add(const std::string& name, const std::vector<std::int64_t>& shape, float scale, float offset = 0.0F) {
    Tensor wide(DType::f32, shape.data(), static_cast<int>(shape.size()));
    fill_normal({wide.as<float>(), static_cast<std::size_t>(wide.numel())}, seed_, stream_++);
    for (std::int64_t i = 0; i < wide.numel(); ++i) wide.as<float>()[i] = scale * wide.as<float>()[i] + offset;
    Tensor stored(dtype_, shape.data(), static_cast<int>(shape.size()));
    convert(wide, stored);
    names_.push_back(name);
    tensors_.push_back(std::move(stored));
  }
  void linear(const std::string& name, const std::vector<std::int64_t>& shape) {
    std::int64_t in = 1;
    for (std::size_t i = 1; i < shape.size(); ++i) in *= shape[i];
    add(name + ".weight", shape, 1.0F / std::sqrt(static_cast<float>(in)));
    add(name + ".bias", {shape[0]}, 0.02F);
  }
  std::size_t size() const { return names_.size(); }
  std::string name(std::size_t i) const { return names_[i]; }
  void write(const std::string& path, std::size_t begin, std::size_t end) const {
    std::vector<NamedTensor> part;
    for (std::size_t i = begin; i < end; ++i) part.push_back({names_[i], tensors_[i]});
    write_safetensors(path, part, {{"format", "pt"}});
  }

 private:
  std::uint64_t seed_;
  DType dtype_;
  std::uint64_t stream_ = 0;
  std::vector<std::string> names_;
  std::vector<Tensor> tensors_;
};

Writer make_weights(const Shape& s, std::uint64_t seed, DType dtype) {
  Writer w(seed, dtype);
  const std::int64_t d = s.heads * 128;
  w.linear("patch_embedding", {d, s.in_channels, 1, 2, 2});
  w.linear("condition_embedder.time_embedder.linear_1", {d, 256});
  w.linear("condition_embedder.time_embedder.linear_2", {d, d});
  w.linear("condition_embedder.time_proj", {6 * d, d});
  w.linear("condition_embedder.text_embedder.linear_1", {d, s.text_dim});
  w.linear("condition_embedder.text_embedder.linear_2", {d, d});
  for (std::int64_t layer = 0; layer < s.layers; ++layer) {
    const std::string block = "blocks." + std::to_string(layer) + ".";
    w.add(block + "scale_shift_table", {1, 6, d}, 1.0F / std::sqrt(static_cast<float>(d)));
    for (const std::string attention : {"attn1.", "attn2."}) {
      for (const std::string part : {"to_q", "to_k", "to_v", "to_out.0"}) w.linear(block + attention + part, {d, d});
      for (const std::string part : {"norm_q", "norm_k"}) w.add(block + attention + part + ".weight", {d}, 0.1F, 1.0F);
    }
    w.add(block + "norm2.weight", {d}, 0.1F, 1.0F);
    w.add(block + "norm2.bias", {d}, 0.1F);
    w.linear(block + "ffn.net.0.proj", {s.ffn_dim, d});
    w.linear(block + "ffn.net.2", {d, s.ffn_dim});
  }
  w.add("scale_shift_table", {1, 2, d}, 1.0F / std::sqrt(static_cast<float>(d)));
  w.linear("proj_out", {4 * s.out_channels, d});
  return w;
}

// As the Wan converter writes it: keys that equal the constructor's defaults may be missing.
void write_expert(const std::string& folder, const Shape& s, std::uint64_t seed, DType dtype, bool sharded) {
  write_text(folder + "/config.json",
             R"({"_class_name":"WanTransformer3DModel","_diffusers_version":"0.35.0.dev0","attention_head_dim":128,)"
             R"("cross_attn_norm":true,"eps":1e-06,"freq_dim":256,"patch_size":[1,2,2],"qk_norm":"rms_norm_across_heads",)"
             R"("added_kv_proj_dim":null,"ffn_dim":)" +
                 std::to_string(s.ffn_dim) + R"(,"in_channels":)" + std::to_string(s.in_channels) + R"(,"out_channels":)" +
                 std::to_string(s.out_channels) + R"(,"num_attention_heads":)" + std::to_string(s.heads) + R"(,"num_layers":)" +
                 std::to_string(s.layers) + R"(,"text_dim":)" + std::to_string(s.text_dim) + "}");
  const Writer w = make_weights(s, seed, dtype);
  const std::string name = "/diffusion_pytorch_model";
  if (!sharded) return w.write(folder + name + ".safetensors", 0, w.size());
  const std::size_t half = w.size() / 2;
  const std::string shards[] = {"diffusion_pytorch_model-00001-of-00002.safetensors", "diffusion_pytorch_model-00002-of-00002.safetensors"};
  w.write(folder + "/" + shards[0], 0, half);
  w.write(folder + "/" + shards[1], half, w.size());
  std::string map;
  for (std::size_t i = 0; i < w.size(); ++i) {
    map.append(i == 0 ? "\"" : ",\"").append(w.name(i)).append("\":\"").append(shards[i < half ? 0 : 1]).append("\"");
  }
  write_text(folder + name + ".safetensors.index.json", R"({"metadata":{"total_size":1},"weight_map":{)" + map + "}}");
}

void write_rest(const TemporaryFolder& folder, const std::string& pipeline, bool two_experts, const std::string& scalars, double shift,
                const std::string& vae) {
  write_text(folder / "model_index.json",
             R"({"_class_name":")" + pipeline + R"(","_diffusers_version":"0.35.0.dev0",)" + scalars +
                 R"("scheduler":["diffusers","UniPCMultistepScheduler"],"text_encoder":["transformers","UMT5EncoderModel"],)"
                 R"("tokenizer":["transformers","T5TokenizerFast"],"transformer":["diffusers","WanTransformer3DModel"],)" +
                 (two_experts ? R"("transformer_2":["diffusers","WanTransformer3DModel"],)" : R"("transformer_2":[null,null],)") +
                 R"("vae":["diffusers","AutoencoderKLWan"]})");
  write_text(
      folder / "scheduler/scheduler_config.json",
      R"({"_class_name":"UniPCMultistepScheduler","_diffusers_version":"0.35.0.dev0","beta_end":0.02,"beta_schedule":"linear",)"
      R"("beta_start":0.0001,"disable_corrector":[],"dynamic_thresholding_ratio":0.995,"final_sigmas_type":"zero","flow_shift":)" +
          std::to_string(shift) +
          R"(,"lower_order_final":true,"num_train_timesteps":1000,"predict_x0":true,"prediction_type":"flow_prediction",)"
          R"("rescale_betas_zero_snr":false,"sample_max_value":1.0,"solver_order":2,"solver_p":null,"solver_type":"bh2",)"
          R"("steps_offset":0,"thresholding":false,"time_shift_type":"exponential","timestep_spacing":"linspace","trained_betas":null,)"
          R"("use_beta_sigmas":false,"use_dynamic_shifting":false,"use_exponential_sigmas":false,"use_flow_sigmas":true,)"
          R"("use_karras_sigmas":false})");
  write_text(folder / "text_encoder/config.json", R"({"architectures":["UMT5EncoderModel"],"d_model":4096,"num_layers":24})");
  write_text(folder / "vae/config.json", vae);
}

void write_embeds(const TemporaryFolder& folder) {
  Tensor rows(DType::bf16, {512, 4096});
  for (std::int64_t i = 0; i < 20 * 4096; ++i) rows.as<bf16>()[i] = to_bf16(0.3F * std::sin(static_cast<float>(i)));  // zero rows pad
  const NamedTensor embeds[] = {{"prompt_embeds", rows}, {"negative_prompt_embeds", rows}};
  write_safetensors(folder / "embeds.safetensors", embeds);
}

const std::string kVae21 = R"({"_class_name":"AutoencoderKLWan","base_dim":96,"z_dim":16,"temperal_downsample":[false,true,true]})";
const std::string kVae22 =
    R"({"_class_name":"AutoencoderKLWan","base_dim":160,"z_dim":48,"scale_factor_spatial":16,"scale_factor_temporal":4,"is_residual":true})";

GenerateResult run(Engine& engine, const TemporaryFolder& folder, std::int64_t width, std::int64_t height, std::int64_t frames) {
  GenerateOptions options;
  options.prompt_embeds = folder / "embeds.safetensors";
  options.width = width;
  options.height = height;
  options.frames = frames;
  options.steps = 3;
  GenerateResult result = engine.generate(options);
  EXPECT_TRUE(result.frames.empty());
  return result;
}

TEST(WanShapes, Wan21OneExpertInF32Files) {
  const TemporaryFolder folder;
  write_embeds(folder);
  write_expert(folder / "transformer", {.heads = 3}, 1, DType::f32, false);
  // The converter leaves a boundary_ratio in single-expert models: it has no meaning there.
  write_rest(folder, "WanPipeline", false, R"("boundary_ratio":0.875,)", 3.0, kVae21);
  for (const Precision precision : {Precision::bf16, Precision::f32}) {
    Engine engine(folder.path(), {.precision = precision, .progress = {}});
    EXPECT_FALSE(engine.has_codec());
    EXPECT_EQ(engine.default_fps(), 16);
    const Estimate full = engine.estimate({});
    EXPECT_EQ(full.tokens, 32760);
    EXPECT_FALSE(full.boundary_ratio.has_value());
    EXPECT_EQ(full.high_noise_steps, 30);
    const GenerateResult result = run(engine, folder, 64, 48, 9);
    EXPECT_EQ(result.latents.view().describe(), "[1,16,3,6,8] f32");
    EXPECT_EQ(result.report.high_noise_steps, 3);
  }
}

TEST(WanShapes, Wan22TwoShardedExperts) {
  const TemporaryFolder folder;
  write_embeds(folder);
  write_expert(folder / "transformer", {}, 1, DType::bf16, true);
  write_expert(folder / "transformer_2", {}, 2, DType::f16, true);
  write_rest(folder, "WanPipeline", true, R"("boundary_ratio":0.875,)", 12.0, kVae21);
  Engine engine(folder.path(), {});
  GenerateOptions options;
  options.width = 1280;
  options.height = 720;
  options.steps = 40;
  EXPECT_EQ(engine.estimate(options).tokens, 75600);
  EXPECT_EQ(engine.estimate(options).high_noise_steps, 26);
  options.sigma_mode = SigmaMode::wan;
  options.flow_shift = 3.0;
  EXPECT_EQ(engine.estimate(options).high_noise_steps, 12);
  const GenerateResult result = run(engine, folder, 48, 32, 5);
  EXPECT_EQ(result.latents.view().describe(), "[1,16,2,4,6] f32");
  EXPECT_LT(result.report.high_noise_steps, 3);
}

TEST(WanShapes, Ti2v5BExpandsTimesteps) {
  const TemporaryFolder folder;
  write_embeds(folder);
  write_expert(folder / "transformer", {.in_channels = 48, .out_channels = 48}, 1, DType::bf16, false);
  write_rest(folder, "WanPipeline", false, R"("boundary_ratio":null,"expand_timesteps":true,)", 5.0, kVae22);
  Engine engine(folder.path(), {});
  EXPECT_EQ(engine.default_fps(), 24);
  EXPECT_EQ(engine.estimate({}).tokens, 27280);
  EXPECT_EQ(run(engine, folder, 64, 64, 5).latents.view().describe(), "[1,48,2,4,4] f32");
}

TEST(WanShapes, ImageToVideoLoadsButNeedsItsImage) {
  const TemporaryFolder folder;
  write_embeds(folder);
  write_expert(folder / "transformer", {.in_channels = 36}, 1, DType::bf16, false);
  write_rest(folder, "WanImageToVideoPipeline", false, R"("image_encoder":[null,null],"image_processor":[null,null],)", 3.0, kVae21);
  Engine engine(folder.path(), {});
  GenerateOptions options;
  options.prompt_embeds = folder / "embeds.safetensors";
  try {
    engine.generate(options);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("needs an image (in_channels 36, out_channels 16)"));
  }
}

}  // namespace
}  // namespace winnow
