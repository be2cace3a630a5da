// Measuring MagCache's ratios on a model: how large is what all blocks add to the hidden states, step against step?
#pragma once

#include <array>
#include <string>
#include <vector>

#include "calib/magnitudes.h"
#include "report/comparison.h"
#include "report/unfinished.h"
#include "winnow/engine.h"

namespace winnow::report {

struct MagnitudeRun {
  MagnitudeCalibration calibration;
  // [expert][branch][step of the expert], over prompts, of the mean over tokens of |residual| / |residual of the step before|; 1
  // at an expert's first step.
  std::array<std::array<std::vector<double>, 2>, 2> sums;
  std::size_t prompts = 0;  // that it has seen
};

// Runs options once per prompt (with options.prompt_embeds: once, as it is), dense and without a cache; the ratios are means over
// prompts. options.attention names the executor. With `unfinished`, it goes on after the prompts that an interrupted calibration
// has seen, and keeps what every prompt gave. Throws Error, Cancelled.
MagnitudeRun calibrate_magnitudes(const Generate& generate, GenerateOptions options, const std::vector<std::string>& prompts,
                                  const std::string& model_directory, const Unfinished* unfinished = nullptr);

}  // namespace winnow::report
