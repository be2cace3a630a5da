// Calibrating skip-softmax on a model: dense runs whose attention calls tell what every threshold would skip.
#pragma once

#include <string>
#include <vector>

#include "calib/skip_softmax.h"
#include "report/comparison.h"
#include "report/unfinished.h"
#include "winnow/engine.h"

namespace winnow::report {

struct SkipSoftmaxRun {
  SkipCalibration calibration;
  std::vector<SkipGaps> gaps;  // per expert
  std::size_t prompts = 0;     // that it has seen
};

// Runs options once per prompt (with options.prompt_embeds: once, as it is), dense, with both guidance branches, and fits every
// expert that has a call. options.attention names the executor. With `unfinished`, it goes on after the prompts that an interrupted
// calibration has seen, and keeps what every prompt gave. Throws Error, also if an expert has too little to skip; Cancelled.
SkipSoftmaxRun calibrate_skip_softmax(const Generate& generate, GenerateOptions options, const std::vector<std::string>& prompts,
                                      const std::string& model_directory, const Unfinished* unfinished = nullptr);

}  // namespace winnow::report
