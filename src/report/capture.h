// Captured attention calls: q, k, v of a generation's self-attention as safetensors files, one per call.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "report/comparison.h"
#include "winnow/engine.h"
#include "winnow/steps.h"
#include "winnow/tensor.h"

namespace winnow::report {

// Which calls to keep. An empty list stands for all.
struct CaptureChoice {
  std::vector<int> layers = {}, steps = {}, experts = {};
  std::vector<Branch> branches = {};
  bool wants_forward(const StepContext& context) const;  // in any layer
  bool wants(const StepContext& context) const;
};

const char* branch_name(Branch branch);  // "cond", "uncond"

// Runs the generation as far as the chosen calls need it and writes each of them into `folder`, which is made if it is missing.
// Files are named after the call, "step03_expert0_layer02_cond.safetensors"; tensors q, k, v are [1,S,H,D] in the dtype in
// which attention gets them, and the metadata says where they come from. Returns the files in the order of the calls.
// The generation runs under options.attention; `forwards` are those of its Estimate. Throws Error, before the run if the choice
// does not fit it, and Cancelled.
std::vector<std::string> capture(const Generate& generate, const GenerateOptions& options, const std::vector<StepContext>& forwards,
                                 const CaptureChoice& choice, const std::string& model, const std::string& folder);

// One captured call in memory.
struct Capture {
  std::string name;
  Tensor q, k, v;       // [B,S,H,D]
  StepContext context;  // what the metadata tells of it; files of others may have none
  AttentionInputs inputs() const { return {context, q, k, v}; }
};
// Tensors are [S,H,D] or [B,S,H,D] in f32, f16 or bf16, under the names given. Throws Error naming the file.
Capture load_capture(const std::string& path, const std::array<std::string, 3>& names = {"q", "k", "v"});
// "33x12x12"; unset unless it is three positive numbers.
std::optional<Grid> read_grid(std::string_view text);
// Every .safetensors file below `folder`, ordered by name; they are named by their paths in it, without the ending.
// Throws Error if there is none, or unless all have the same sizes and dtype.
std::vector<Capture> load_captures(const std::string& folder);

}  // namespace winnow::report
