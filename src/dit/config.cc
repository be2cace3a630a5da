#include "dit/config.h"

#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <set>

#include "core/json.h"
#include "winnow/error.h"

namespace winnow::dit {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path, const std::string& what) { throw Error("model", path + ": " + what); }

std::string text_of(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

// One JSON object. Every key has to be asked for, or be listed as ignorable, before finish().
class Object {
 public:
  Object(const std::string& path, const json& value) : path_(path), value_(value) {
    if (!value.is_object()) fail(path, "expected an object, got " + text_of(value));
  }

  const json* find(const char* key) {
    known_.insert(key);
    const auto at = value_.find(key);
    return at == value_.end() ? nullptr : &*at;
  }
  const json* find_non_null(const char* key) {
    const json* value = find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  bool has(const char* key) const { return value_.contains(key); }
  void ignore(std::initializer_list<const char*> keys) {
    for (const char* key : keys) known_.insert(key);
  }

  void read(const char* key, std::int64_t& out, std::int64_t low, std::int64_t high) {
    if (const json* value = find(key)) out = integer(key, *value, low, high);
  }
  void read(const char* key, int& out, int low, int high) {
    if (const json* value = find(key)) out = static_cast<int>(integer(key, *value, low, high));
  }
  void read(const char* key, double& out, double low, double high) {
    if (const json* value = find(key)) out = number(key, *value, low, high);
  }
  void read(const char* key, bool& out) {
    if (const json* value = find(key)) {
      if (!value->is_boolean()) bad(key, "true or false", *value);
      out = value->get<bool>();
    }
  }
  void read(const char* key, std::string& out) {
    if (const json* value = find(key)) {
      if (!value->is_string()) bad(key, "a string", *value);
      out = value->get<std::string>();
    }
  }
  // Accepts the key only with this value: other values change the arithmetic in a way that Winnow does not implement.
  void require(const char* key, const json& expected) {
    const json* value = find(key);
    if (value != nullptr && *value != expected) bad(key, text_of(expected), *value);
  }
  std::vector<float> floats(const char* key, std::int64_t count) {
    const json* value = find(key);
    if (value == nullptr) fail(path_, std::string(key) + ": missing");
    if (!value->is_array() || value->size() != static_cast<std::size_t>(count)) {
      fail(path_, std::string(key) + ": expected " + std::to_string(count) + " numbers");
    }
    std::vector<float> out;
    for (const json& item : *value) out.push_back(static_cast<float>(number(key, item, -1e30, 1e30)));
    return out;
  }

  std::int64_t integer(const char* key, const json& value, std::int64_t low, std::int64_t high) const {
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(high)) ||
        value.get<std::int64_t>() < low || value.get<std::int64_t>() > high) {
      bad(key, "an integer in [" + std::to_string(low) + "," + std::to_string(high) + "]", value);
    }
    return value.get<std::int64_t>();
  }
  double number(const char* key, const json& value, double low, double high) const {
    if (!value.is_number() || !(value.get<double>() >= low && value.get<double>() <= high)) {
      bad(key, "a number in [" + text_of(low) + "," + text_of(high) + "]", value);
    }
    return value.get<double>();
  }
  [[noreturn]] void bad(const char* key, const std::string& expected, const json& found) const {
    fail(path_, std::string(key) + ": expected " + expected + ", got " + text_of(found));
  }

  void finish() const {
    for (const auto& item : value_.items()) {
      if (known_.count(item.key()) == 0) fail(path_, "unknown key \"" + item.key() + "\"");
    }
  }

 private:
  std::string path_;
  const json& value_;
  std::set<std::string, std::less<>> known_;
};

json read(const std::string& path) { return parse_json(read_text_file(path, "model"), path, "model"); }

constexpr std::int64_t kMaxDim = 1 << 20;  // far above any model, far below any overflow

}  // namespace

IndexConfig load_index_config(const std::string& path) {
  const json value = read(path);
  Object object(path, value);
  IndexConfig config;
  object.read("_class_name", config.pipeline_class);
  if (config.pipeline_class != "WanPipeline" && config.pipeline_class != "WanImageToVideoPipeline") {
    fail(path, "_class_name: expected WanPipeline or WanImageToVideoPipeline, got \"" + config.pipeline_class + "\"");
  }
  const auto component = [&](const char* key) -> std::string {
    const json* entry = object.find_non_null(key);
    if (entry == nullptr) return {};
    const auto text_or_null = [](const json& v) { return v.is_string() || v.is_null(); };
    if (!entry->is_array() || entry->size() != 2 || !text_or_null((*entry)[0]) || !text_or_null((*entry)[1])) {
      object.bad(key, "[library, class]", *entry);
    }
    return (*entry)[1].is_null() ? std::string() : (*entry)[1].get<std::string>();
  };
  config.transformer = component("transformer");
  config.transformer_2 = component("transformer_2");
  config.scheduler = component("scheduler");
  config.text_encoder = component("text_encoder");
  config.tokenizer = component("tokenizer");
  config.vae = component("vae");
  component("image_encoder");  // of image-to-video pipelines
  component("image_processor");
  for (const auto& [key, name] : {std::pair("transformer", config.transformer), std::pair("transformer_2", config.transformer_2)}) {
    if (!name.empty() && name != "WanTransformer3DModel") fail(path, std::string(key) + ": expected WanTransformer3DModel, got " + name);
  }
  if (config.transformer.empty()) fail(path, "transformer: missing");
  if (config.scheduler.empty()) fail(path, "scheduler: missing");
  if (const json* ratio = object.find_non_null("boundary_ratio")) config.boundary_ratio = object.number("boundary_ratio", *ratio, 0.0, 1.0);
  object.read("expand_timesteps", config.expand_timesteps);
  object.ignore({"_diffusers_version", "_name_or_path"});
  object.finish();
  return config;
}

TransformerConfig load_transformer_config(const std::string& path) {
  const json value = read(path);
  Object object(path, value);
  TransformerConfig config;
  object.require("_class_name", "WanTransformer3DModel");
  if (const json* patch = object.find("patch_size")) {
    if (!patch->is_array() || patch->size() != 3) object.bad("patch_size", "three integers", *patch);
    for (std::size_t i = 0; i < 3; ++i) config.patch_size[i] = object.integer("patch_size", (*patch)[i], 1, 64);
  }
  object.read("num_attention_heads", config.num_heads, 1, 4096);
  object.read("attention_head_dim", config.head_dim, 6, 4096);
  object.read("in_channels", config.in_channels, 1, 65536);
  config.out_channels = 16;
  if (const json* out = object.find_non_null("out_channels")) {
    config.out_channels = object.integer("out_channels", *out, 1, 65536);
  } else if (object.has("out_channels")) {
    config.out_channels = config.in_channels;  // an explicit null means so
  }
  object.read("text_dim", config.text_dim, 1, kMaxDim);
  object.read("freq_dim", config.freq_dim, 2, kMaxDim);
  object.read("ffn_dim", config.ffn_dim, 1, kMaxDim);
  object.read("num_layers", config.num_layers, 1, 10000);
  object.read("cross_attn_norm", config.cross_attn_norm);
  object.require("qk_norm", "rms_norm_across_heads");
  object.read("eps", config.eps, 0.0, 1.0);
  object.require("image_dim", nullptr);  // Wan2.1 image-to-video: CLIP image tokens
  object.require("added_kv_proj_dim", nullptr);
  object.require("pos_embed_seq_len", nullptr);
  object.read("rope_max_seq_len", config.rope_max_seq_len, 1, kMaxDim);
  object.ignore({"_diffusers_version", "_name_or_path", "window_size", "add_img_emb"});
  object.finish();
  if (config.head_dim % 2 != 0) fail(path, "attention_head_dim: expected an even number, got " + std::to_string(config.head_dim));
  if (config.freq_dim % 2 != 0) fail(path, "freq_dim: expected an even number, got " + std::to_string(config.freq_dim));
  if (config.width() > kMaxDim) fail(path, "num_attention_heads * attention_head_dim: expected at most " + std::to_string(kMaxDim));
  return config;
}

SchedulerConfig load_scheduler_config(const std::string& path) {
  const json value = read(path);
  Object object(path, value);
  SchedulerConfig config;
  std::string name;
  object.read("_class_name", name);
  if (name == "UniPCMultistepScheduler") {
    config.solver = Solver::unipc;
  } else if (name == "FlowMatchEulerDiscreteScheduler") {
    config.solver = Solver::euler;
  } else {
    fail(path, "_class_name: expected UniPCMultistepScheduler or FlowMatchEulerDiscreteScheduler, got \"" + name + "\"");
  }
  object.read("num_train_timesteps", config.num_train_timesteps, 1, kMaxDim);
  // The two classes have different names for one number. Either is accepted in both.
  object.read("flow_shift", config.flow_shift, 1e-3, 1e3);
  if (object.has("shift")) {
    double shift = 0.0;
    object.read("shift", shift, 1e-3, 1e3);
    if (object.has("flow_shift") && shift != config.flow_shift) fail(path, "shift and flow_shift differ");
    config.flow_shift = shift;
  }
  if (config.solver == Solver::unipc) {
    for (const char* key : {"use_flow_sigmas", "prediction_type"}) {  // their constructor defaults are another kind of diffusion
      if (!object.has(key)) fail(path, std::string(key) + ": missing");
    }
  }
  object.require("prediction_type", "flow_prediction");
  object.require("use_flow_sigmas", true);
  object.require("use_dynamic_shifting", false);
  object.require("use_karras_sigmas", false);
  object.require("use_exponential_sigmas", false);
  object.require("use_beta_sigmas", false);
  object.require("shift_terminal", nullptr);
  object.require("invert_sigmas", false);
  object.require("stochastic_sampling", false);
  object.read("solver_order", config.solver_order, 1, 2);
  object.require("solver_type", "bh2");
  object.require("solver_p", nullptr);
  object.require("predict_x0", true);
  object.read("lower_order_final", config.lower_order_final);
  object.require("disable_corrector", json::array());
  object.require("final_sigmas_type", "zero");
  object.require("thresholding", false);
  // Without effect on flow matching with a static shift.
  object.ignore({"_diffusers_version", "_name_or_path", "beta_start", "beta_end", "beta_schedule", "trained_betas",
                 "dynamic_thresholding_ratio", "sample_max_value", "timestep_spacing", "steps_offset", "rescale_betas_zero_snr",
                 "time_shift_type", "sigma_min", "sigma_max", "base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len"});
  object.finish();
  return config;
}

TextConfig load_text_config(const std::string& path) {
  const json value = read(path);
  Object object(path, value);
  TextConfig config;
  object.read("_class_name", config.class_name);
  if (config.class_name != "WordEmbedding") {  // somebody else's encoder: its configuration is not ours to judge
    if (const json* name = object.find("architectures")) config.class_name = text_of(*name);
    return config;
  }
  config.runnable = true;
  for (const char* key : {"vocab_size", "embedding_dim", "max_length"}) {
    if (!object.has(key)) fail(path, std::string(key) + ": missing");
  }
  object.read("vocab_size", config.vocab_size, 1, kMaxDim);
  object.read("embedding_dim", config.embedding_dim, 1, kMaxDim);
  object.read("max_length", config.max_length, 1, 65536);
  object.read("pad_token_id", config.pad_token_id, 0, config.vocab_size - 1);
  object.require("padding", "zero_rows");
  object.read("lowercase", config.lowercase);
  object.require("split", "whitespace");
  object.read("negative_prompt", config.negative_prompt);
  if (config.negative_prompt == "zero_rows") config.negative_prompt.clear();
  object.ignore({"_diffusers_version", "_name_or_path"});
  object.finish();
  return config;
}

CodecConfig load_codec_config(const std::string& path) {
  const json value = read(path);
  Object object(path, value);
  CodecConfig config;
  object.read("_class_name", config.class_name);
  object.read("z_dim", config.z_dim, 1, 65536);
  object.read("scale_factor_spatial", config.scale_factor_spatial, 1, 1024);
  object.read("scale_factor_temporal", config.scale_factor_temporal, 1, 1024);
  if (config.class_name != "BlockDCTCodec") return config;
  config.runnable = true;
  object.read("block_size", config.block_size, 1, 64);
  object.require("in_channels", 3);
  object.require("channel_order", "c*16 + ky*4 + kx");
  object.require("value_range", json::array({-1.0, 1.0}));
  if (config.z_dim != 3 * config.block_size * config.block_size || config.scale_factor_spatial != config.block_size ||
      config.scale_factor_temporal != 1) {
    fail(path, "expected z_dim = 3 block_size^2, scale_factor_spatial = block_size and scale_factor_temporal = 1");
  }
  config.latents_mean = object.floats("latents_mean", config.z_dim);
  config.latents_std = object.floats("latents_std", config.z_dim);
  for (const float s : config.latents_std) {
    if (!(s > 0.0F)) fail(path, "latents_std: expected positive numbers");
  }
  object.ignore({"transform", "_diffusers_version", "_name_or_path"});
  object.finish();
  return config;
}

DefaultsConfig load_defaults_config(const std::string& path) {
  const json value = read(path);
  Object object(path, value);
  DefaultsConfig config;
  for (const char* key : {"width", "height", "frames", "fps"}) {
    if (!object.has(key)) fail(path, std::string(key) + ": missing");
  }
  object.read("width", config.width, 1, kMaxDim);
  object.read("height", config.height, 1, kMaxDim);
  object.read("frames", config.frames, 1, kMaxDim);
  object.read("fps", config.fps, 1, 1000);
  object.finish();
  return config;
}

bool has_entry(const std::string& path) {
  std::error_code ignored;
  return fs::symlink_status(path, ignored).type() != fs::file_type::not_found;
}

ModelConfig load_model_config(const std::string& directory) {
  const fs::path root(directory);
  std::error_code ignored;
  if (!fs::is_directory(root, ignored)) fail(directory, "not a directory");
  const auto file = [&](const char* name) { return (root / name).string(); };
  ModelConfig config;
  config.directory = directory;
  config.index = load_index_config(file("model_index.json"));
  config.transformer = load_transformer_config(file("transformer/config.json"));
  if (config.index.two_experts()) {
    const std::string path = file("transformer_2/config.json");
    if (!(load_transformer_config(path) == config.transformer)) fail(path, "expected the same values as in transformer/config.json");
  }
  config.scheduler = load_scheduler_config(file("scheduler/scheduler_config.json"));
  const bool class_is_euler = config.index.scheduler == "FlowMatchEulerDiscreteScheduler";
  if (class_is_euler != (config.scheduler.solver == Solver::euler)) {
    fail(file("scheduler/scheduler_config.json"), "_class_name: expected " + config.index.scheduler + " as in model_index.json");
  }
  if (!config.index.text_encoder.empty()) {
    config.text = load_text_config(file("text_encoder/config.json"));
    config.text.class_name = config.index.text_encoder;
    if (config.text.runnable && config.text.embedding_dim != config.transformer.text_dim) {
      fail(file("text_encoder/config.json"), "embedding_dim: expected the transformer's text_dim " +
                                                 std::to_string(config.transformer.text_dim) + ", got " +
                                                 std::to_string(config.text.embedding_dim));
    }
  }
  if (!config.index.vae.empty()) {
    config.codec = load_codec_config(file("vae/config.json"));
    if (config.codec.z_dim != config.transformer.out_channels) {
      fail(file("vae/config.json"), "z_dim: expected the transformer's out_channels " + std::to_string(config.transformer.out_channels) +
                                        ", got " + std::to_string(config.codec.z_dim));
    }
  }
  if (has_entry(file("winnow.json"))) {
    config.defaults = load_defaults_config(file("winnow.json"));
  } else if (config.index.expand_timesteps) {  // TI2V-5B
    config.defaults = {1280, 704, 121, 24};
  } else {
    config.defaults = {832, 480, 81, 16};
  }
  return config;
}

}  // namespace winnow::dit
