// AttentionConfig: names and validity.
#include <cmath>
#include <string>

#include "winnow/error.h"
#include "winnow/session.h"

namespace winnow {

void SkipSoftmax::validate() const {
  if (!std::isfinite(threshold) || threshold < 0.0F || threshold >= 1.0F) {
    throw Error("config", "threshold: expected a number in [0,1), got " + std::to_string(threshold));
  }
}

void FixedPlan::validate() const {
  if (path.empty()) throw Error("config", "path: expected a plan file, got an empty string");
}

void AttentionConfig::validate() const {
  gate.validate();
  std::visit([](const auto& options) { options.validate(); }, method);
}

const char* AttentionConfig::method_name() const {
  static constexpr const char* kNames[] = {"dense", "mean_pool", "oracle", "skip_softmax", "plan"};
  static_assert(std::variant_size_v<Method> == std::size(kNames));
  return kNames[method.index()];
}

}  // namespace winnow
