// What a comparison compares: methods, and the densities at which it wants them. Read from a JSON file such as bench/compare.json.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "winnow/session.h"

namespace winnow::report {

// The option of a method that makes it sparser or denser.
struct Knob {
  std::string key;
  double sparse = 0.0, dense = 1.0;  // its values at both ends; density is monotone between them
  bool is_integer = false;           // both were written as integers
  bool is_logarithmic = false;       // equal steps are equal factors
};

struct MethodEntry {
  std::string label;      // names rows of tables; unique
  std::string attention;  // a setting as JSON text, or whatever --attention takes if there is no knob
  std::optional<Knob> knob = {};
  std::optional<std::vector<double>> densities = {};        // of this method; unset: the list's
  std::optional<std::vector<double>> video_densities = {};  // the same

  // The setting with its knob at `position`, from 0 (sparse) to 1 (dense); without a knob it is what it is. Throws Error.
  AttentionConfig at(double position) const;
};

struct MethodList {
  std::vector<double> densities;        // to which knobs are set, in (0,1]
  std::vector<double> video_densities;  // those of them at which videos are made
  std::vector<MethodEntry> methods;
};

// {"densities":[0.5,0.25], "video_densities":[0.25],
//  "methods":[{"label":"mean_pool", "attention":{"method":"mean_pool"}, "knob":"cdf", "range":[0.01,1.0]}, ...]}
// "range" goes from the sparse to the dense end; integers make the knob one; "log":true makes its steps factors. A method may have
// "densities" and "video_densities" of its own. Without "knob" a setting is measured as it is. Throws Error naming the file and method.
MethodList read_method_list(const std::string& path);

// Throws Error if two labels or two settings are the same, or a setting is invalid.
void check_methods(const MethodList& list);

}  // namespace winnow::report
