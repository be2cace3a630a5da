// A model directory's JSON files as typed values. Layout: diffusers' save_pretrained.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "winnow/engine.h"

namespace winnow::dit {

// model_index.json. A component is empty if absent or [null, null].
struct IndexConfig {
  std::string pipeline_class;
  std::string transformer, transformer_2, scheduler, text_encoder, tokenizer, vae;  // class names
  std::optional<double> boundary_ratio;
  bool expand_timesteps = false;
  bool two_experts() const { return !transformer_2.empty(); }
};

// transformer/config.json of a WanTransformer3DModel. Defaults are those of its constructor.
struct TransformerConfig {
  std::array<std::int64_t, 3> patch_size{1, 2, 2};  // frames, height, width
  std::int64_t num_heads = 40;
  std::int64_t head_dim = 128;
  std::int64_t in_channels = 16;
  std::int64_t out_channels = 16;
  std::int64_t text_dim = 4096;
  std::int64_t freq_dim = 256;
  std::int64_t ffn_dim = 13824;
  std::int64_t num_layers = 40;
  bool cross_attn_norm = true;
  double eps = 1e-6;
  std::int64_t rope_max_seq_len = 1024;

  std::int64_t width() const { return num_heads * head_dim; }  // D
  std::int64_t patch_volume() const { return patch_size[0] * patch_size[1] * patch_size[2]; }
  bool operator==(const TransformerConfig&) const = default;
};

// scheduler/scheduler_config.json of UniPCMultistepScheduler or FlowMatchEulerDiscreteScheduler.
struct SchedulerConfig {
  Solver solver = Solver::unipc;
  std::int64_t num_train_timesteps = 1000;
  double flow_shift = 1.0;
  int solver_order = 2;
  bool lower_order_final = true;
};

// text_encoder/config.json. Only Winnow's own WordEmbedding can be run.
struct TextConfig {
  bool runnable = false;
  std::string class_name;
  std::int64_t vocab_size = 0;
  std::int64_t embedding_dim = 0;
  std::int64_t max_length = 512;  // rows that the transformer attends
  std::int64_t pad_token_id = 0;
  bool lowercase = false;
  std::string negative_prompt;  // empty: zero rows
};

// vae/config.json. Only Winnow's own BlockDCTCodec can be run; the factors are known for the others too.
struct CodecConfig {
  bool runnable = false;
  std::string class_name;
  std::int64_t z_dim = 16;
  std::int64_t scale_factor_spatial = 8;   // pixels per latent pixel
  std::int64_t scale_factor_temporal = 4;  // frames = (latent frames - 1) * this + 1
  std::int64_t block_size = 0;
  std::vector<float> latents_mean, latents_std;  // z_dim each
};

// What the model was made for: winnow.json beside model_index.json, or the Wan defaults (see config.cc).
struct DefaultsConfig {
  std::int64_t width = 0, height = 0, frames = 0;
  int fps = 16;
};

struct ModelConfig {
  std::string directory;
  IndexConfig index;
  TransformerConfig transformer;  // both experts have the same shapes
  SchedulerConfig scheduler;
  TextConfig text;
  CodecConfig codec;
  DefaultsConfig defaults;
};

// Whether a folder has an entry of this name, a link that leads nowhere included: opening that tells what is wrong with it.
bool has_entry(const std::string& path);

// Throws Error naming the file and the key: unreadable, not JSON, unknown key, wrong type, out of range, unsupported value.
ModelConfig load_model_config(const std::string& directory);

// The parts, for tests; `path` is the file to read.
IndexConfig load_index_config(const std::string& path);
TransformerConfig load_transformer_config(const std::string& path);
SchedulerConfig load_scheduler_config(const std::string& path);
TextConfig load_text_config(const std::string& path);
CodecConfig load_codec_config(const std::string& path);
DefaultsConfig load_defaults_config(const std::string& path);

}  // namespace winnow::dit
