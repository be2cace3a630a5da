// Selection by sub-block scores.
#pragma once

#include <string>

#include "winnow/select.h"

namespace winnow {

// SubBlock (SGLang's subblock_sparse): blocks of tile_k tokens are cut into cells, and a tile's score estimates its softmax mass by
//   score(I, J) = ln sum_{a,b} exp(scale * mean(Q_{I,a}) . mean(K_{J,b}))
// over the cells a of I's blocks (n_q each) and b of J (n_k) that hold a token. f32 throughout. The log-sum-exp over the blocks of a
// query tile is the one over their cells, so that adjacent blocks need no step of their own.
// Keeps the ceil((1 - sparsity) * tiles) tiles of largest score, forced ones first. Forced: the neighbors, and tiles whose score is
// not finite. Ties go to the smaller bit-reversed index. The plan is the same bits for any number of threads and on every ISA.
struct SubBlock {
  static constexpr const char* kName = "subblock";
  float sparsity = 0.75F;    // in [0,1). An upper bound: rows are rounded up to the executor's granularity, and keep at least one tile
  int n_k = 4;               // cells per key block: 1, 2, 4 or 8
  int n_q = 4;               // cells per query block; more than n_k buys nothing
  bool neighbors = true;     // as in MeanPool
  bool means = true;         // as in MeanPool
  std::string budgets = {};  // as in MeanPool
  void validate() const;
  template <class Self, class Visit>
  static void options(Self& self, Visit&& visit) {
    visit("sparsity", self.sparsity);
    visit("n_k", self.n_k);
    visit("n_q", self.n_q);
    visit("neighbors", self.neighbors);
    visit("means", self.means);
    visit("budgets", self.budgets);
  }
};
// Throws Error where tile_k is no multiple of n_k and n_q, or tile_q none of tile_k / n_q.
TilePlan select(const TensorView& q, const TensorView& k, const PlanSpec& spec, const SubBlock& options, Workspace& ws);

}  // namespace winnow
