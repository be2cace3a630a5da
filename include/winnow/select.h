// Selectors: ways of deciding which key tiles a query tile needs. Each is a struct of options in winnow/select/ and an overload
//   TilePlan select(const TensorView& q, const TensorView& k, const PlanSpec& spec, const Options& options, Workspace& ws);
// whose plan's memory comes from `ws` and lives as long as its scope; a repeated call takes nothing from the system.
// q: [B,Sq,H,D]  k: [B,Sk,Hk,D], H % Hk == 0, f32, f16 or bf16, any strides with contiguous D. Inputs are only read.
// Throws Error on any mismatch, before any work. winnow/methods.h lists them all.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "winnow/plan.h"
#include "winnow/steps.h"
#include "winnow/tensor.h"

namespace winnow {

class Workspace;

// What a selector decided, counted in (row, key tile) pairs. Calls add to it.
struct SelectReport {
  std::int64_t candidates = 0;  // tiles that exist for their row
  std::int64_t asked = 0;       // tiles of the budget, forced ones included
  std::int64_t kept = 0;        // tiles of the plan: what was asked, rounded up to the granularity
  std::int64_t gated = 0;       // tiles that CosineGate forces dense
};

// What an executor wants of a plan, as plain numbers, and what the caller knows.
struct PlanSpec {
  int tile_q = 128;
  int tile_k = 64;
  int mean_group = 64;
  int granularity = 1;                                    // tiles per row are rounded up to a multiple of this (capped at all tiles)
  float scale = std::numeric_limits<float>::quiet_NaN();  // of the logits; NaN means 1/sqrt(D)
  // See PlanGeometry.
  std::vector<std::int64_t> key_lengths = {};
  std::shared_ptr<const TokenLayout> query_layout = {};
  std::shared_ptr<const TokenLayout> key_layout = {};
  // Share of its candidate tiles that a row keeps, in (0,1], in place of the method's own budget: [H] or [B*H*Gq]; empty: none.
  std::span<const float> keep = {};
  Grid grid = {};                  // of the tokens, for methods that look at positions; empty: unknown
  SelectReport* report = nullptr;  // optional output
};
PlanGeometry plan_geometry(const TensorView& q, const TensorView& k, const PlanSpec& spec);

// How good a plan's choice is. Rows with non-finite logits are left out.
struct Recall {
  double mass = 0.0;  // true softmax mass of the kept tiles, mean over queries
  double set = 0.0;   // |kept and oracle's top-k| / k with the same k per row, mean over rows that keep a tile
};
Recall plan_recall(const TilePlan& plan, const TensorView& q, const TensorView& k, float scale, Workspace& ws);

}  // namespace winnow
