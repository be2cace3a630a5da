// How long a run will take, from a short run of the same engine.
#pragma once

#include <cstdint>

#include "winnow/engine.h"

namespace winnow::report {

struct Forecast {
  double seconds = 0.0;  // of the denoising steps
  // What was measured: two steps at this size, the second of which counts; the first one also pays for first use of memory.
  std::int64_t probe_width = 0, probe_height = 0, probe_frames = 0;
  double probe_seconds = 0.0;  // per step
  double probe_density = 1.0;  // with the options' attention setting; of a fixed plan, its own
  double probe_flops = 0.0;    // per step
};

// Halves the clip until one step costs at most `max_step_flops` (or no smaller clip is valid), runs two steps, and scales
// attention and linear layers by their operation counts. options.progress passes through. Throws Error.
Forecast forecast(Engine& engine, const GenerateOptions& options, double max_step_flops = 1e12);

}  // namespace winnow::report
