// The forward pass, in diffusers' order of operations. T is f32, or bf16 for Precision::bf16; in bf16 every line below rounds
// once to bf16 where diffusers does with torch_dtype=bfloat16, which keeps these in f32: the time embedder, norm2 and all
// scale_shift_tables.
//
//   x = patches                                        tokens n = (f * h/ph + y) * w/pw + x
//   temb = T(L2(silu(L1(sinusoid(t)))))  in f32;  tproj = Linear(T(silu(temb)))
//   per block, m = table + tproj (f32): shift1, scale1, gate1, shift3, scale3, gate3
//     a = T(LN(x) (1 + scale1) + shift1);  q, k = rope(norm(Linear(a))), v = Linear(a);  x = T(x + Linear(attention) gate1)
//     a = T(LN(x) w + b);  q = norm(Linear(a));  x = T(x + Linear(attention(q, text k, text v)))
//     a = T(LN(x) (1 + scale3) + shift3);  x = T(x + Linear(T(gelu(Linear(a)))) gate3)
//   velocity = unpatchified Linear(T(LN(x) (1 + scale) + shift)), (shift, scale) = head table + temb
#include "dit/transformer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "core/numeric.h"
#include "core/safetensors.h"
#include "core/threads.h"
#include "dit/weights.h"
#include "winnow/attend.h"
#include "winnow/error.h"
#include "winnow/threads.h"

namespace winnow::dit {

struct Transformer::Block {
  Tensor table;  // [6, D] f32
  Linear q, k, v, out;
  Tensor norm_q, norm_k;  // [D] f32
  Linear cross_q, cross_k, cross_v, cross_out;
  Tensor cross_norm_q, cross_norm_k;
  Tensor norm_weight, norm_bias;  // [D] f32; empty without cross_attn_norm
  Linear ffn_in, ffn_out;
};

namespace {

class Loader {
 public:
  Loader(const std::string& folder, DType dtype, LinearContext& linear) : files_(folder), dtype_(dtype), linear_(linear) {}

  Linear linear(const std::string& key, std::int64_t out, std::int64_t in) { return linear(key, {out, in}, dtype_); }
  Linear linear(const std::string& key, const std::vector<std::int64_t>& shape, DType dtype) {
    const Tensor weight = files_.take(key + ".weight", shape, dtype);
    const Tensor bias = files_.take(key + ".bias", {shape[0]}, dtype);
    return Linear(linear_, weight.view().reshape({shape[0], weight.numel() / shape[0]}), bias, dtype);
  }
  // A vector that diffusers keeps in T: its values are those of T.
  Tensor vector(const std::string& key, std::int64_t n) {
    const Tensor rounded = files_.take(key, {n}, dtype_);
    Tensor wide(DType::f32, {n});
    convert(rounded, wide);
    return wide;
  }
  Tensor f32(const std::string& key, const std::vector<std::int64_t>& shape) { return files_.take(key, shape, DType::f32); }
  void finish() const { files_.finish("norm_added_q"); }  // diffusers ignores it too

 private:
  WeightFiles files_;
  DType dtype_;
  LinearContext& linear_;
};

TensorView heads(const TensorView& rows, const TransformerConfig& config) {
  return rows.reshape({1, rows.size(0), config.num_heads, config.head_dim});
}

template <class T>
T narrow_to(float x) {
  if constexpr (std::is_same_v<T, bf16>) {
    return to_bf16(x);
  } else {
    return x;
  }
}

// patches [tokens, Cin*pt*ph*pw], features in the order of the convolution's weight: c, kt, kh, kw.
template <class T>
void patchify(const TensorView& latents, const TransformerConfig& config, const TensorView& patches) {
  const auto [pt, ph, pw] = config.patch_size;
  const std::int64_t channels = latents.size(0);
  const std::int64_t frames = latents.size(1);
  const std::int64_t height = latents.size(2);
  const std::int64_t width = latents.size(3);
  const std::int64_t rows = height / ph;
  const std::int64_t columns = width / pw;
  const std::int64_t features = patches.size(1);
  const auto patch = config.patch_size;
  parallel_for(frames / pt * rows, [&, patch](std::int64_t line, int) {
    const std::int64_t f0 = line / rows * patch[0];
    const std::int64_t y0 = line % rows * patch[1];
    T* __restrict out = patches.as<T>() + line * columns * features;
    std::int64_t feature = 0;
    for (std::int64_t c = 0; c < channels; ++c) {
      for (std::int64_t f = f0; f < f0 + patch[0]; ++f) {
        for (std::int64_t y = y0; y < y0 + patch[1]; ++y) {
          const float* in = latents.as<float>() + ((c * frames + f) * height + y) * width;
          for (std::int64_t kx = 0; kx < patch[2]; ++kx, ++feature) {
            for (std::int64_t x = 0; x < columns; ++x) out[x * features + feature] = narrow_to<T>(in[x * patch[2] + kx]);
          }
        }
      }
    }
  });
}

// velocity [Cout,F,h,w] from features in the order pt, ph, pw, c with c fastest.
template <class T>
void unpatchify(const TensorView& features, const TransformerConfig& config, const TensorView& velocity) {
  const std::int64_t channels = velocity.size(0);
  const std::int64_t frames = velocity.size(1);
  const std::int64_t height = velocity.size(2);
  const std::int64_t width = velocity.size(3);
  const auto patch = config.patch_size;
  const std::int64_t rows = height / patch[1];
  const std::int64_t pw = patch[2];
  const std::int64_t columns = width / pw;
  const std::int64_t row = features.size(1);
  parallel_for(frames * height, [=](std::int64_t line, int) {
    const std::int64_t f = line / height;
    const std::int64_t y = line % height;
    const std::int64_t token = (f / patch[0] * rows + y / patch[1]) * columns;
    const std::int64_t place = (f % patch[0] * patch[1] + y % patch[1]) * patch[2];
    const T* in = features.as<T>() + token * features.size(1) + place * channels;
    T* __restrict out = velocity.as<T>() + line * width;
    for (std::int64_t c = 0; c < channels; ++c, ++in, out += frames * height * width) {
      for (std::int64_t column = 0; column < columns; ++column) {
        for (std::int64_t kx = 0; kx < pw; ++kx) out[column * pw + kx] = in[column * row + kx * channels];
      }
    }
  });
}

// [R, freq_dim] f32: cos then sin of t * exp(-ln(10000) i / half), all in f32.
void sinusoid(std::span<const float> timesteps, std::int64_t freq_dim, float* out) {
  const std::int64_t half = freq_dim / 2;
  for (const float t : timesteps) {
    for (std::int64_t i = 0; i < half; ++i) {
      const float exponent = -9.210340371976184F * static_cast<float>(i) / static_cast<float>(half);
      const float angle = t * std::exp(exponent);
      out[i] = std::cos(angle);
      out[half + i] = std::sin(angle);
    }
    out += freq_dim;
  }
}

float element(const TensorView& view, std::int64_t i) {
  return view.dtype == DType::bf16 ? to_f32(view.as<bf16>()[i]) : view.as<float>()[i];
}

}  // namespace

Transformer::Transformer(const std::string& folder, const TransformerConfig& config, Precision precision, LinearContext& linear,
                         const std::function<void(int)>& loaded)
    : config_(config), dtype_(precision == Precision::bf16 ? DType::bf16 : DType::f32) {
  Loader load(folder, dtype_, linear);
  const std::int64_t d = config.width();
  const auto [pt, ph, pw] = config.patch_size;
  const std::string embedder = "condition_embedder.";
  patch_ = load.linear("patch_embedding", {d, config.in_channels, pt, ph, pw}, dtype_);
  time_1_ = load.linear(embedder + "time_embedder.linear_1", {d, config.freq_dim}, DType::f32);
  time_2_ = load.linear(embedder + "time_embedder.linear_2", {d, d}, DType::f32);
  time_proj_ = load.linear(embedder + "time_proj", 6 * d, d);
  text_1_ = load.linear(embedder + "text_embedder.linear_1", d, config.text_dim);
  text_2_ = load.linear(embedder + "text_embedder.linear_2", d, d);
  proj_out_ = load.linear("proj_out", config.patch_volume() * config.out_channels, d);
  head_table_ = load.f32("scale_shift_table", {1, 2, d});
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const std::string block = "blocks." + std::to_string(layer) + ".";
    Block b;
    b.table = load.f32(block + "scale_shift_table", {1, 6, d});
    b.q = load.linear(block + "attn1.to_q", d, d);
    b.k = load.linear(block + "attn1.to_k", d, d);
    b.v = load.linear(block + "attn1.to_v", d, d);
    b.out = load.linear(block + "attn1.to_out.0", d, d);
    b.norm_q = load.vector(block + "attn1.norm_q.weight", d);
    b.norm_k = load.vector(block + "attn1.norm_k.weight", d);
    b.cross_q = load.linear(block + "attn2.to_q", d, d);
    b.cross_k = load.linear(block + "attn2.to_k", d, d);
    b.cross_v = load.linear(block + "attn2.to_v", d, d);
    b.cross_out = load.linear(block + "attn2.to_out.0", d, d);
    b.cross_norm_q = load.vector(block + "attn2.norm_q.weight", d);
    b.cross_norm_k = load.vector(block + "attn2.norm_k.weight", d);
    if (config.cross_attn_norm) {
      b.norm_weight = load.f32(block + "norm2.weight", {d});
      b.norm_bias = load.f32(block + "norm2.bias", {d});
    }
    b.ffn_in = load.linear(block + "ffn.net.0.proj", config.ffn_dim, d);
    b.ffn_out = load.linear(block + "ffn.net.2", d, config.ffn_dim);
    blocks_.push_back(std::move(b));
    if (loaded) loaded(layer);
  }
  load.finish();
}
Transformer::~Transformer() = default;
Transformer::Transformer(Transformer&&) noexcept = default;

std::size_t Transformer::weight_bytes() const {
  std::size_t bytes = head_table_.bytes();
  for (const Linear* l : {&patch_, &time_1_, &time_2_, &time_proj_, &text_1_, &text_2_, &proj_out_}) bytes += l->bytes();
  for (const Block& b : blocks_) {
    for (const Linear* l : {&b.q, &b.k, &b.v, &b.out, &b.cross_q, &b.cross_k, &b.cross_v, &b.cross_out, &b.ffn_in, &b.ffn_out})
      bytes += l->bytes();
    for (const Tensor* t : {&b.table, &b.norm_q, &b.norm_k, &b.cross_norm_q, &b.cross_norm_k, &b.norm_weight, &b.norm_bias}) {
      if (!t->empty()) bytes += t->bytes();
    }
  }
  return bytes;
}

std::size_t Transformer::workspace_bytes(std::int64_t tokens) const {
  const std::int64_t d = config_.width();
  const std::int64_t block = num_threads() * std::min(tokens, Linear::kRows);
  const std::int64_t elements = tokens * 5 * d + block * (d + config_.ffn_dim);  // x, q, k, v, attention; a and hidden per worker
  return static_cast<std::size_t>(elements) * dtype_bytes(dtype_);
}

void Transformer::prepare(std::int64_t tokens) const {
  for (const Linear* l : {&time_1_, &time_2_, &time_proj_}) l->prepare(1);
  for (const Linear* l : {&patch_, &proj_out_}) l->prepare(tokens);
  for (const Block& b : blocks_) {
    for (const Linear* l : {&b.q, &b.k, &b.v, &b.out, &b.cross_q, &b.cross_out, &b.ffn_in, &b.ffn_out}) l->prepare(tokens);
  }
}

Grid Transformer::grid(const TransformerConfig& config, std::int64_t frames, std::int64_t height, std::int64_t width) {
  return {frames / config.patch_size[0], height / config.patch_size[1], width / config.patch_size[2]};
}

double Transformer::linear_flops(const TransformerConfig& config, std::int64_t tokens) {
  const auto d = static_cast<double>(config.width());
  const auto f = static_cast<double>(config.ffn_dim);
  const double ends = d * static_cast<double>(config.patch_volume() * (config.in_channels + config.out_channels));
  const double block = 6.0 * d * d + 2.0 * d * f;  // q, k, v, out, cross q, cross out; the text's k and v are cached
  return 2.0 * static_cast<double>(tokens) * (ends + static_cast<double>(config.num_layers) * block);
}

double Transformer::attention_flops(const TransformerConfig& config, std::int64_t tokens) {
  const auto n = static_cast<double>(tokens);
  return 4.0 * n * n * static_cast<double>(config.width()) * static_cast<double>(config.num_layers);
}

TextCache Transformer::encode_text(const TensorView& text, Workspace& ws) const {
  if (text.rank != 2 || text.size(1) != config_.text_dim || text.dtype != DType::f32) {
    throw Error("transformer", "text: expected [L," + std::to_string(config_.text_dim) + "] f32, got " + text.describe());
  }
  const std::int64_t rows = text.size(0);
  const std::int64_t d = config_.width();
  const Workspace::Scope scope(ws);
  const auto buffer = [&](std::int64_t width) {
    return TensorView(ws.allocate_bytes(static_cast<std::size_t>(rows * width) * dtype_bytes(dtype_)), dtype_, {rows, width});
  };
  const TensorView input = buffer(config_.text_dim);
  const TensorView hidden = buffer(d);
  TextCache cache;
  cache.features = Tensor(dtype_, {rows, d});
  convert(text, input);
  text_1_.run(input, hidden, ws);
  ops_.gelu_tanh(hidden);
  text_2_.run(hidden, cache.features, ws);
  const auto eps = static_cast<float>(config_.eps);
  for (const Block& block : blocks_) {
    Tensor k(dtype_, {rows, d});
    Tensor v(dtype_, {rows, d});
    block.cross_k.run(cache.features, k, ws);
    ops_.norm_rope(k, block.cross_norm_k.as<float>(), nullptr, config_.head_dim, eps);
    block.cross_v.run(cache.features, v, ws);
    cache.k.push_back(std::move(k));
    cache.v.push_back(std::move(v));
  }
  return cache;
}

void Transformer::time_embedding(const ForwardInput& input, const TensorView& temb, const TensorView& tproj, Workspace& ws) const {
  const std::int64_t count = temb.size(0);
  const std::int64_t d = config_.width();
  const Workspace::Scope scope(ws);
  if (input.temb.data != nullptr) {
    convert(input.temb, temb);
  } else {
    const TensorView wave(ws.allocate<float>(static_cast<std::size_t>(count * config_.freq_dim)), DType::f32, {count, config_.freq_dim});
    const TensorView hidden(ws.allocate<float>(static_cast<std::size_t>(count * d)), DType::f32, {count, d});
    const TensorView out(ws.allocate<float>(static_cast<std::size_t>(count * d)), DType::f32, {count, d});
    sinusoid(input.timesteps, config_.freq_dim, wave.as<float>());
    time_1_.run(wave, hidden, ws);
    ops_.silu(hidden, hidden);
    time_2_.run(hidden, out, ws);
    convert(out, temb);
  }
  const TensorView active(ws.allocate_bytes(static_cast<std::size_t>(count * d) * dtype_bytes(dtype_)), dtype_, {count, d});
  ops_.silu(temb, active);
  time_proj_.run(active, tproj, ws);
}

void Transformer::run_block(int layer, const ForwardInput& input, const TensorView& tproj, const TensorView& x, AttentionSession& session,
                            Workspace& ws, ForwardStats& stats, const Probe& probe) const {
  const Block& block = blocks_[static_cast<std::size_t>(layer)];
  const std::int64_t tokens = x.size(0);
  const std::int64_t d = config_.width();
  const std::int64_t count = tproj.size(0);
  const auto eps = static_cast<float>(config_.eps);
  const Workspace::Scope scope(ws);
  const auto buffer = [&](std::int64_t rows, std::int64_t width) {
    return TensorView(ws.allocate_bytes(static_cast<std::size_t>(rows * width) * dtype_bytes(dtype_)), dtype_, {rows, width});
  };
  const auto show = [&](const char* name, const TensorView& view) {
    if (probe) probe(layer, name, view);
  };

  // m[r, i, :]; the scales (i = 1, 4) hold 1 + scale.
  auto* m = ws.allocate<float>(static_cast<std::size_t>(count * 6 * d));
  for (std::int64_t r = 0; r < count * 6; ++r) {
    const float* table = block.table.as<float>() + r % 6 * d;
    const float one = r % 6 == 1 || r % 6 == 4 ? 1.0F : 0.0F;
    for (std::int64_t i = 0; i < d; ++i) m[r * d + i] = one + (table[i] + element(tproj, r * d + i));
  }
  const auto modulation = [&](int part) { return RowTable{m + part * d, 6 * d, input.timestep_of_token}; };

  const TensorView q = buffer(tokens, d);
  const TensorView k = buffer(tokens, d);
  const TensorView v = buffer(tokens, d);
  const TensorView attention = buffer(tokens, d);
  const std::int64_t block_rows = std::min(tokens, Linear::kRows);
  const TensorView a_of_workers = buffer(num_threads() * block_rows, d);
  const TensorView hidden_of_workers = buffer(num_threads() * block_rows, config_.ffn_dim);
  const auto own = [&](const TensorView& of_workers, const RowBlock& rows) {
    return of_workers.slice(0, rows.worker() * block_rows, rows.worker() * block_rows + rows.rows());
  };

  // Between the attentions every operation works on single rows, so a block of rows goes through all of them in one pass.
  Linear::for_blocks({&block.q, &block.k, &block.v}, tokens, ws, [&](RowBlock& rows) {
    const TensorView a = own(a_of_workers, rows);
    const float* rope = input.rope.as<float>() + rows.begin() * config_.head_dim;
    ops_.layer_norm(rows.of(x), a, modulation(1).from(rows.begin()), modulation(0).from(rows.begin()), eps);
    rows.run(block.q, a, rows.of(q));
    ops_.norm_rope(rows.of(q), block.norm_q.as<float>(), rope, config_.head_dim, eps);
    rows.run(block.k, a, rows.of(k));
    ops_.norm_rope(rows.of(k), block.norm_k.as<float>(), rope, config_.head_dim, eps);
    rows.run(block.v, a, rows.of(v));
  });
  show("q", q);
  show("k", k);
  show("v", v);
  StepContext context = input.context;
  context.layer = layer;
  context.num_layers = static_cast<int>(config_.num_layers);
  const CallReport report = session.attend(context, heads(q, config_), heads(k, config_), heads(v, config_), heads(attention, config_), ws);
  stats.pairs += report.pairs;
  stats.computed_pairs += report.pairs * report.density;
  show("attention", attention);

  Linear::for_blocks({&block.out, &block.cross_q}, tokens, ws, [&](RowBlock& rows) {
    const TensorView a = own(a_of_workers, rows);
    rows.run(block.out, rows.of(attention), a);
    const RowTable gate = modulation(2).from(rows.begin());
    if (config_.cross_attn_norm) {
      ops_.add_norm(rows.of(x), a, gate, {block.norm_weight.as<float>()}, {block.norm_bias.as<float>()}, eps);
    } else {
      ops_.gated_add(rows.of(x), a, gate);
    }
    rows.run(block.cross_q, config_.cross_attn_norm ? a : rows.of(x), rows.of(q));
    ops_.norm_rope(rows.of(q), block.cross_norm_q.as<float>(), nullptr, config_.head_dim, eps);
  });
  const Tensor& text_k = input.text->k[static_cast<std::size_t>(layer)];
  const Tensor& text_v = input.text->v[static_cast<std::size_t>(layer)];
  const auto start = std::chrono::steady_clock::now();
  {
    const Workspace::Scope plan_scope(ws);
    PlanGeometry geometry;
    geometry.H = config_.num_heads;
    geometry.Sq = tokens;
    geometry.Sk = text_k.view().size(0);
    const TilePlan plan = TilePlan::dense(geometry, DenseReason::cross_attention, &ws);
    attend(plan, heads(q, config_), heads(text_k, config_), heads(text_v, config_), heads(attention, config_), {}, ws);
  }
  stats.cross_attention_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  show("cross_attention", attention);

  Linear::for_blocks({&block.cross_out, &block.ffn_in, &block.ffn_out}, tokens, ws, [&](RowBlock& rows) {
    const TensorView a = own(a_of_workers, rows);
    const TensorView hidden = own(hidden_of_workers, rows);
    const TensorView ffn = probe ? rows.of(q) : a;  // q has been used
    rows.run(block.cross_out, rows.of(attention), a);
    ops_.add_norm(rows.of(x), a, {}, modulation(4).from(rows.begin()), modulation(3).from(rows.begin()), eps);
    rows.run(block.ffn_in, a, hidden);
    ops_.gelu_tanh(hidden);
    rows.run(block.ffn_out, hidden, ffn);
    ops_.gated_add(rows.of(x), ffn, modulation(5).from(rows.begin()));
  });
  show("ffn", q);
  show("block", x);
}

void Transformer::run_head(const ForwardInput& input, const TensorView& temb, const TensorView& x, const TensorView& velocity,
                           Workspace& ws, const Probe& probe) const {
  const std::int64_t d = config_.width();
  const std::int64_t count = temb.size(0);
  const std::int64_t features = config_.patch_volume() * config_.out_channels;
  const Workspace::Scope scope(ws);
  auto* s = ws.allocate<float>(static_cast<std::size_t>(count * 2 * d));  // [r][shift, 1 + scale][D]
  for (std::int64_t r = 0; r < count; ++r) {
    for (std::int64_t i = 0; i < d; ++i) {
      const float t = element(temb, r * d + i);
      s[r * 2 * d + i] = head_table_.as<float>()[i] + t;
      s[r * 2 * d + d + i] = 1.0F + (head_table_.as<float>()[d + i] + t);
    }
  }
  const std::size_t size = dtype_bytes(dtype_);
  const TensorView a(ws.allocate_bytes(static_cast<std::size_t>(x.numel()) * size), dtype_, {x.size(0), d});
  const TensorView out(ws.allocate_bytes(static_cast<std::size_t>(x.size(0) * features) * size), dtype_, {x.size(0), features});
  ops_.layer_norm(x, a, {s + d, 2 * d, input.timestep_of_token}, {s, 2 * d, input.timestep_of_token}, static_cast<float>(config_.eps));
  proj_out_.run(a, out, ws);
  if (probe) probe(-1, "head", out);
  if (dtype_ == DType::bf16) {
    unpatchify<bf16>(out, config_, velocity);
  } else {
    unpatchify<float>(out, config_, velocity);
  }
}

ForwardStats Transformer::forward(const ForwardInput& input, const TensorView& velocity, AttentionSession& session, Workspace& ws,
                                  const std::function<void(int, const ForwardStats&)>& layer_begins, const Probe& probe) const {
  const TensorView& latents = input.latents;
  const auto [pt, ph, pw] = config_.patch_size;
  if (latents.rank != 4 || latents.size(0) != config_.in_channels || latents.dtype != DType::f32 || !latents.is_contiguous() ||
      latents.size(1) % pt != 0 || latents.size(2) % ph != 0 || latents.size(3) % pw != 0 || latents.numel() == 0) {
    throw Error("transformer", "latents: expected contiguous [" + std::to_string(config_.in_channels) + ",F,h,w] f32 in patches of " +
                                   std::to_string(pt) + "x" + std::to_string(ph) + "x" + std::to_string(pw) + ", got " +
                                   latents.describe());
  }
  const TensorView expected(velocity.data, dtype_, {config_.out_channels, latents.size(1), latents.size(2), latents.size(3)});
  if (velocity.rank != 4 || velocity.dtype != dtype_ || !velocity.is_contiguous() || velocity.shape != expected.shape) {
    throw Error("transformer", "velocity: expected " + expected.describe() + ", got " + velocity.describe());
  }
  const Grid tokens_grid = grid(config_, latents.size(1), latents.size(2), latents.size(3));
  const std::int64_t tokens = tokens_grid.tokens();
  if (input.rope.rank != 2 || input.rope.size(0) != tokens || input.rope.size(1) != config_.head_dim) {
    throw Error("transformer",
                "rope: expected [" + std::to_string(tokens) + "," + std::to_string(config_.head_dim) + "], got " + input.rope.describe());
  }
  if (input.text == nullptr || input.text->k.size() != blocks_.size())
    throw Error("transformer", "text: expected encode_text() of this expert");
  const auto count = static_cast<std::int64_t>(input.timesteps.size());
  if (count < 1) throw Error("transformer", "timesteps: expected at least one");

  const Workspace::Scope scope(ws);
  const std::int64_t d = config_.width();
  const std::size_t size = dtype_bytes(dtype_);
  const auto buffer = [&](std::int64_t rows, std::int64_t width) {
    return TensorView(ws.allocate_bytes(static_cast<std::size_t>(rows * width) * size), dtype_, {rows, width});
  };
  const TensorView x = buffer(tokens, d);
  const TensorView temb = buffer(count, d);
  const TensorView tproj = buffer(count, 6 * d);
  {
    const Workspace::Scope patch_scope(ws);
    const TensorView patches = buffer(tokens, patch_.in());
    if (dtype_ == DType::bf16) {
      patchify<bf16>(latents, config_, patches);
    } else {
      patchify<float>(latents, config_, patches);
    }
    patch_.run(patches, x, ws);
  }
  time_embedding(input, temb, tproj, ws);
  if (probe) {
    probe(-1, "patch_embed", x);
    probe(-1, "temb", temb);
    probe(-1, "tproj", tproj);
  }
  ForwardInput call = input;
  call.context.grid = tokens_grid;
  ForwardStats stats;
  CachedForward* const cached = input.cached;
  if (layer_begins) layer_begins(0, stats);  // in every forward, also in one without a block to run
  bool reused = cached != nullptr && cached->before_blocks(x, temb, tproj, ws);
  for (int layer = 0; layer < config_.num_layers && !reused; ++layer) {
    if (layer > 0 && layer_begins) layer_begins(layer, stats);
    run_block(layer, call, tproj, x, session, ws, stats, probe);
    if (cached != nullptr && layer == 0) reused = cached->after_first_block(x);
  }
  if (cached != nullptr && !reused) cached->after_blocks(x);
  run_head(call, temb, x, velocity, ws, probe);
  return stats;
}

}  // namespace winnow::dit
