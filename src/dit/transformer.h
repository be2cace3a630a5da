// WanTransformer3DModel: one velocity prediction. Follows diffusers' roundings in both arithmetics (see transformer.cc).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dit/config.h"
#include "dit/linear.h"
#include "dit/ops.h"
#include "steps/step_cache.h"
#include "winnow/session.h"
#include "winnow/tensor.h"
#include "winnow/workspace.h"

namespace winnow::dit {

// What a prompt becomes inside one expert. It does not depend on the step: made once per run.
struct TextCache {
  Tensor features;           // [L, D]
  std::vector<Tensor> k, v;  // per layer [L, D], k after its norm
};

// Called with intermediate results: (layer or -1, name, view). For error searches and tests; empty in normal runs.
//   before the blocks: "patch_embed" [N,D], "temb" [R,D], "tproj" [R,6,D]
//   in a block: "q", "k" (after norm and RoPE), "v", "attention" (of self-attention) [N,D], "cross_attention", "ffn", "block"
//   after them: "head" [N, 4 Cout]
using Probe = std::function<void(int layer, const char* name, const TensorView& view)>;

struct ForwardInput {
  TensorView latents;                               // [Cin,F,h,w] f32
  std::span<const float> timesteps;                 // R distinct values; R = 1 unless tokens differ
  const std::int32_t* timestep_of_token = nullptr;  // [tokens] indices into timesteps; null: all 0
  TensorView temb;                                  // [R,D]: used instead of the time embedding of `timesteps` if not empty
  const TextCache* text = nullptr;
  TensorView rope;                  // make_rope() of this grid
  StepContext context;              // layer and num_layers are filled in
  CachedForward* cached = nullptr;  // of the step cache; null: every block runs
};

struct ForwardStats {
  double pairs = 0.0, computed_pairs = 0.0;  // of self-attention
  double cross_attention_seconds = 0.0;
  double density() const { return pairs > 0.0 ? computed_pairs / pairs : 1.0; }
};

class Transformer {
 public:
  // Reads the weights in `folder`. `loaded` is called after every block and may throw.
  Transformer(const std::string& folder, const TransformerConfig& config, Precision precision, LinearContext& linear,
              const std::function<void(int layer)>& loaded = {});
  ~Transformer();
  Transformer(Transformer&&) noexcept;

  const TransformerConfig& config() const { return config_; }
  DType dtype() const { return dtype_; }  // of activations
  std::size_t weight_bytes() const;
  // Scratch of one forward, without what attention takes for itself.
  std::size_t workspace_bytes(std::int64_t tokens) const;
  // Makes the linear layers ready for forwards of this many tokens and one timestep, so that they allocate nothing.
  void prepare(std::int64_t tokens) const;
  // text [L, text_dim] f32.
  TextCache encode_text(const TensorView& text, Workspace& ws) const;
  // velocity [Cout,F,h,w] of dtype(). All scratch from `ws`. `layer_begins(layer, stats)` runs before every block and may throw.
  ForwardStats forward(const ForwardInput& input, const TensorView& velocity, AttentionSession& session, Workspace& ws,
                       const std::function<void(int layer, const ForwardStats& stats)>& layer_begins = {}, const Probe& probe = {}) const;

  static Grid grid(const TransformerConfig& config, std::int64_t frames, std::int64_t height, std::int64_t width);
  // Of one forward, without the cached text work.
  static double linear_flops(const TransformerConfig& config, std::int64_t tokens);
  static double attention_flops(const TransformerConfig& config, std::int64_t tokens);

 private:
  struct Block;
  void time_embedding(const ForwardInput& input, const TensorView& temb, const TensorView& tproj, Workspace& ws) const;
  void run_block(int layer, const ForwardInput& input, const TensorView& tproj, const TensorView& x, AttentionSession& session,
                 Workspace& ws, ForwardStats& stats, const Probe& probe) const;
  void run_head(const ForwardInput& input, const TensorView& temb, const TensorView& x, const TensorView& velocity, Workspace& ws,
                const Probe& probe) const;

  TransformerConfig config_;
  DType dtype_;
  Ops ops_;
  Linear patch_, time_1_, time_2_, time_proj_, text_1_, text_2_, proj_out_;
  Tensor head_table_;  // [2, D] f32
  std::vector<Block> blocks_;
};

}  // namespace winnow::dit
