// The plan of the method `plan`: a plan file, or a block mask that becomes a plan for the calls it fits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "winnow/block_mask.h"
#include "winnow/methods.h"
#include "winnow/plan.h"
#include "winnow/select.h"
#include "winnow/tensor.h"

namespace winnow {

class StaticPlan {
 public:
  // Reads the file. Throws Error.
  explicit StaticPlan(const FixedPlan& options);

  // The plan for a call. Throws Error unless the file fits q and k. Valid until the next call of fit(), which allocates nothing
  // if the sizes stay the same.
  const TilePlan& fit(const TensorView& q, const TensorView& k, const PlanSpec& spec);
  TilePlan take() && { return std::move(*plan_); }  // what fit() returned
  // Its density in self-attention of `tokens` tokens. Throws Error unless it is for as many.
  double density(std::int64_t tokens);

 private:
  std::string path_;
  std::optional<LoadedBlockMask> mask_;
  Skipped skipped_ = Skipped::drop;  // of the mask
  std::optional<TilePlan> plan_;     // of the file, or of the mask for the sizes of the last call
};

// Throws Error unless a plan that somebody else made has the layouts of `spec`: tiles of other tokens could not keep documents
// and spans apart.
void check_protects(const TilePlan& plan, const PlanSpec& spec);

}  // namespace winnow
