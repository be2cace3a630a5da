// Where in the denoising run an attention call stands. Set once per forward by the host.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "winnow/token_layout.h"

namespace winnow {

enum class Branch : std::uint8_t { conditional, unconditional };
// What the keys are: the queries' own sequence, or another one (text, image). Cross-attention always runs dense.
enum class AttentionRole : std::uint8_t { self, cross };

struct StepContext {
  int expert = 0;  // 0 = high noise (or the only one), 1 = low noise
  int layer = 0;   // 0-based
  int num_layers = 1;
  int step = 0;  // 0-based
  int num_steps = 1;
  std::optional<double> timestep = std::nullopt;  // normalised scheduler timestep in [0,1], 1 = pure noise
  Branch branch = Branch::conditional;
  Grid grid;
  AttentionRole role = AttentionRole::self;  // of this call
  // What else than one video the sequence holds, in the host's memory. See TokenSequence.
  std::span<const TokenSpan> spans = {};
  std::span<const std::int64_t> documents = {};
  std::span<const std::int64_t> key_documents = {};  // of cross-attention, whose keys are another sequence with as many documents
};

// What one expert or one guidance branch has different from the other keys of GateOptions: only what is set.
struct GateOverride {
  std::optional<int> skip_first_steps = std::nullopt;
  std::optional<float> skip_first_fraction = std::nullopt;
  std::optional<int> skip_first_layers = std::nullopt;
  std::optional<std::vector<int>> dense_layers = std::nullopt;
  std::optional<std::int64_t> min_seq_len = std::nullopt;
  std::optional<std::optional<double>> disabled_until_timestep = std::nullopt;  // the inner nullopt takes the rule away

  bool operator==(const GateOverride&) const = default;
  template <class Self, class Visit>  // Self: also GateOptions, which has the same keys
  static void options(Self& self, Visit&& visit) {
    visit("skip_first_steps", self.skip_first_steps);
    visit("skip_first_fraction", self.skip_first_fraction);
    visit("skip_first_layers", self.skip_first_layers);
    visit("dense_layers", self.dense_layers);
    visit("min_seq_len", self.min_seq_len);
    visit("disabled_until_timestep", self.disabled_until_timestep);
  }
};
struct ExpertOverrides {
  GateOverride high, low;
  bool operator==(const ExpertOverrides&) const = default;
  template <class Self, class Visit>
  static void options(Self& self, Visit&& visit) {
    visit("high", self.high);
    visit("low", self.low);
  }
};
struct BranchOverrides {
  GateOverride conditional, unconditional;
  bool operator==(const BranchOverrides&) const = default;
  template <class Self, class Visit>
  static void options(Self& self, Visit&& visit) {
    visit("conditional", self.conditional);
    visit("unconditional", self.unconditional);
  }
};

// When to run dense. A call is dense if any rule says so; every dense call carries the name of the first rule that holds,
// in this order: requested (the method is dense), cross_attention (the context says so, or Sq != Sk), skip_first_steps,
// skip_first_fraction, skip_first_layers, dense_layers, min_seq_len, missing_timestep, disabled_until_timestep, unknown_positions
// (see TokenOptions), break_even (AttentionConfig::profile).
// A key's value for a call is that of its branch's override, else of its expert's, else the common one.
struct GateOptions {
  int skip_first_steps = 0;            // steps [0, n) are dense
  float skip_first_fraction = 0.0F;    // of num_steps: steps [0, ceil(x num_steps)) are dense; with the above the longer wins
  int skip_first_layers = 0;           // layers [0, n) are dense
  std::vector<int> dense_layers = {};  // these layers are dense too; any order
  // Fewer keys than this: dense. Of packed documents, those that are shorter are dense in the same call as the others.
  std::int64_t min_seq_len = 0;
  // Dense while timestep > this value; sparse from timestep <= value on (inclusive). Unset = no such rule.
  // A missing timestep with this rule means dense, and one diagnostic.
  std::optional<double> disabled_until_timestep = std::nullopt;
  ExpertOverrides experts = {};
  BranchOverrides branches = {};

  void validate() const;  // throws Error naming the key, what was expected and what was found
  template <class Self, class Visit>
  static void options(Self& self, Visit&& visit) {
    GateOverride::options(self, visit);
    visit("experts", self.experts);
    visit("branches", self.branches);
  }
};

}  // namespace winnow
