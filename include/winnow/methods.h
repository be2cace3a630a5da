// Every way of running one attention call, and their registration: a method is a struct in the list of Method, nothing else.
// It has
//   static constexpr const char* kName       its name in configurations and on the command line
//   void validate() const                    throws Error naming the key, what was expected and what was found
//   static void options(self, visit)         calls visit(key, value) for every option: its configuration keys, in order
//   void complete()                          optional: fills in defaults that depend on which keys were given
// and, if it selects tiles, an overload of select() (winnow/select.h).
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "winnow/plan.h"
#include "winnow/select.h"
#include "winnow/select/cosine_gate.h"
#include "winnow/select/mean_pool.h"
#include "winnow/select/oracle.h"
#include "winnow/select/sol.h"
#include "winnow/select/subblock.h"
#include "winnow/select/window.h"
#include "winnow/tensor.h"

namespace winnow {

class Workspace;

// Dense attention on every call.
struct Dense {
  static constexpr const char* kName = "dense";
  void validate() const {}
  template <class Self, class Visit>
  static void options(Self&, Visit&&) {}
};

// In-kernel skipping of tiles whose softmax weights would all be tiny, on the dense plan.
struct SkipSoftmax {
  static constexpr const char* kName = "skip_softmax";
  static constexpr float kDefaultThreshold = 1e-3F;
  // A tile is dropped when exp(tile max - running max) < threshold for all rows of a granule. Directly, in [0,1) with 0 = off, or
  // as min(a exp(b target_sparsity) / Sk, 1) from a calibration. At most one of the two is set; neither: kDefaultThreshold.
  std::optional<float> threshold = std::nullopt;
  std::optional<float> target_sparsity = std::nullopt;  // in (0,1): share of the tiles to drop
  // Of target_sparsity: a calibration file or a model directory (docs/calibration.md). Empty: the engine takes its model's own.
  std::string calibration = {};
  void validate() const;
  void complete() {
    if (!threshold && !target_sparsity) threshold = kDefaultThreshold;
  }
  template <class Self, class Visit>
  static void options(Self& self, Visit&& visit) {
    visit("threshold", self.threshold);
    visit("target_sparsity", self.target_sparsity);
    visit("calibration", self.calibration);
  }
};

// A fixed plan for every call whose sizes fit: a plan file, or another program's block mask (winnow/block_mask.h).
struct FixedPlan {
  static constexpr const char* kName = "plan";
  std::string path;
  // Of a block mask: queries and keys per block, 0 = as the file says; whether what it drops is represented by means.
  int block_q = 0;
  int block_k = 0;
  bool means = false;
  void validate() const;
  template <class Self, class Visit>
  static void options(Self& self, Visit&& visit) {
    visit("path", self.path);
    visit("block_q", self.block_q);
    visit("block_k", self.block_k);
    visit("means", self.means);
  }
};

using Method = std::variant<Dense,        //
                            MeanPool,     //
                            CosineGate,   //
                            SubBlock,     //
                            Sol,          //
                            Window,       //
                            Oracle,       //
                            SkipSoftmax,  //
                            FixedPlan>;

// True for methods whose plan is their own: selectors and FixedPlan. The others run on the dense plan.
bool selects_tiles(const Method& method);
// The plan of a method that selects tiles, else the dense plan with reason `none`. A FixedPlan's file is read and must match q
// and k. Memory as for the selectors.
TilePlan make_plan(const TensorView& q, const TensorView& k, const PlanSpec& spec, const Method& method, Workspace& ws);

// At least what make_plan() takes from the workspace with the current number of threads; the file of a FixedPlan is not counted.
// With G = rows * Gk pairs of tiles, for a method that estimates from nq query blocks of a sequence and nk cells per key tile:
//   plan     4 G + G/8 + 16 rows                                 its lists at density 1, one bit per pair, offsets
//   means    4 D (B H nq + B Hk nk Gk) + 4 B Hk nk Gk            grows with S, not S^2
//   threads  4 Gk (7 + nk cells per query tile) + O(D) each      Gk rounded up to 32 throughout
// oracle takes 4 (Gq Gk + Sk D) and 8 Gk tile_q per thread instead of the means.
std::size_t plan_workspace_bytes(const TensorView& q, const TensorView& k, const PlanSpec& spec, const Method& method);

}  // namespace winnow
