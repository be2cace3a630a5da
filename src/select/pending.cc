// Stand-ins until the selectors are merged.
#include "winnow/error.h"
#include "winnow/select.h"

namespace winnow {

void MeanPool::validate() const {}
void Oracle::validate() const {}
TilePlan select_mean_pool(const TensorView&, const TensorView&, const PlanSpec&, const MeanPool&, Workspace&) {
  throw Error("select", "mean_pool: not built yet");
}
TilePlan select_oracle(const TensorView&, const TensorView&, const PlanSpec&, const Oracle&, Workspace&) {
  throw Error("select", "oracle: not built yet");
}
TilePlan TilePlan::load(const std::string& path) { throw Error("plan", path + ": not built yet"); }

}  // namespace winnow
