// Helpers of the engine's tests: temporary folders, tensors from fixtures, one forward pass.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "dit/rope.h"
#include "dit/transformer.h"
#include "tests/support/temporary_folder.h"
#include "winnow/metrics.h"
#include "winnow/session.h"
#include "winnow/workspace.h"

namespace winnow::testing {

namespace fs = std::filesystem;

inline std::string source(const std::string& path) { return std::string(WINNOW_SOURCE_DIR) + "/" + path; }

using tests::TemporaryFolder;

inline void write_text(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path) << text;
}

// Without leading axes of extent 1 until `rank` is left.
inline TensorView squeeze(TensorView view, int rank) {
  while (view.rank > rank && view.size(0) == 1) {
    for (int axis = 1; axis < view.rank; ++axis) {
      view.shape[static_cast<std::size_t>(axis - 1)] = view.shape[static_cast<std::size_t>(axis)];
      view.strides[static_cast<std::size_t>(axis - 1)] = view.strides[static_cast<std::size_t>(axis)];
    }
    --view.rank;
    view.shape[static_cast<std::size_t>(view.rank)] = 0;
    view.strides[static_cast<std::size_t>(view.rank)] = 0;
  }
  return view;
}

struct ForwardCase {
  TensorView latents;  // [C,F,h,w] f32
  TensorView text;     // [L,text_dim] f32
  std::vector<float> timesteps;
  std::vector<std::int32_t> timestep_of_token;  // empty: one for all
  TensorView temb;                              // see ForwardInput
  dit::Probe probe;
};

// The velocity of one dense forward, in f32.
inline Tensor forward(const dit::Transformer& model, const ForwardCase& c) {
  Workspace ws;
  AttentionSession session(AttentionConfig{});
  const dit::TextCache text = model.encode_text(c.text, ws);
  const Grid grid = dit::Transformer::grid(model.config(), c.latents.size(1), c.latents.size(2), c.latents.size(3));
  const Tensor rope = dit::make_rope(model.config(), grid);
  dit::ForwardInput input;
  input.latents = c.latents;
  input.timesteps = c.timesteps;
  input.timestep_of_token = c.timestep_of_token.empty() ? nullptr : c.timestep_of_token.data();
  input.temb = c.temb;
  input.text = &text;
  input.rope = rope;
  if (c.probe) c.probe(-1, "text_embed", text.features);
  const auto shape = {model.config().out_channels, c.latents.size(1), c.latents.size(2), c.latents.size(3)};
  Tensor velocity(model.dtype(), shape);
  model.forward(input, velocity, session, ws, {}, c.probe);
  Tensor wide(DType::f32, shape);
  convert(velocity, wide);
  return wide;
}

}  // namespace winnow::testing
