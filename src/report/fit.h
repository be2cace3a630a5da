// Setting a method's knob so that it computes a given share of the work.
#pragma once

#include <functional>
#include <vector>

#include "report/method_list.h"
#include "winnow/session.h"

namespace winnow::report {

struct Fitted {
  AttentionConfig attention;
  double density = 1.0;
};

// Remembers what it has measured, so that further targets cost less.
class KnobFit {
 public:
  // `density` measures a setting. Both have to outlive the object.
  KnobFit(const MethodEntry& entry, const std::function<double(const AttentionConfig&)>& density) : entry_(entry), density_(density) {}

  // The densest measured setting that is not above `target` (or the closest, if all are), after at most some tens of measurements; few if
  // density is smooth in the knob. It is up to the caller to find it close enough: not every method can be made arbitrarily sparse.
  Fitted fit(double target);

 private:
  struct Sample {
    double position = 0.0;  // of the knob, 0 sparse to 1 dense
    double density = 0.0;
  };
  std::size_t measure(double position);  // index of the new sample

  const MethodEntry& entry_;
  const std::function<double(const AttentionConfig&)>& density_;
  std::vector<Sample> samples_;  // by position
};

}  // namespace winnow::report
