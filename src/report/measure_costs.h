// Measures the costs that the break-even rule needs: winnow info --measure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "calib/cost_profile.h"

namespace winnow::report {

struct MeasuredCosts {
  struct Line {
    std::string executor;
    std::string method;        // whose planning it is; empty: attention
    double worst_error = 0.0;  // of the fitted line, relative to what was measured
    // Fewest tokens from which on planning pays, in self-attention with 2 heads of 128 at density 0.5; methods only, 0: never
    // up to a million.
    std::int64_t break_even = 0;
  };
  CostProfile profile;
  std::vector<Line> lines;
};

// Every executor of the CPU that is chosen by itself, every selector but the oracle, random data, at most 8192 tokens; some
// seconds. `progress` hears what is measured; it returns false to stop, which throws Cancelled.
MeasuredCosts measure_costs(const std::function<bool(const std::string& what)>& progress);

// The profile that sessions without the key "profile" find.
struct ProfileState {
  std::string path;     // empty: there is none
  std::string problem;  // why it cannot be used; empty: it can
};
ProfileState profile_state();

// Where a new profile belongs, checked to be writable: `named`, else where sessions look for one. Makes its folder. Throws Error.
std::string place_for_profile(const std::string& named);

}  // namespace winnow::report
