// The calibration of MagCache: what `winnow calibrate magcache` measures and an engine reads. docs/calibration.md has the format.
#pragma once

#include <cstdint>
#include <string>

#include "winnow/step_cache.h"

namespace winnow {

struct MagnitudeCalibration {
  std::string model = {};     // fingerprint of the weights
  std::string executor = {};  // that it was made on
  std::int64_t tokens = 0;    // sequence length it was made at
  ExpertRatios ratios = {};   // one number per step of an expert; an expert without any: not calibrated

  // Throw Error.
  void save(const std::string& path) const;
  static MagnitudeCalibration load(const std::string& path);
};

}  // namespace winnow
