// A model in memory, or one clear error if this machine is too small for it.
#pragma once

#include "cli/generate_flags.h"
#include "winnow/callbacks.h"
#include "winnow/engine.h"

namespace winnow::cli {

// Throws Error, also before loading anything if the weights alone are larger than the machine.
Engine load_engine(const GenerateFlags& flags, const Progress& progress);
// Throws Error if weights and workspace are larger than the machine: the system would end the program, or swap for hours, long
// after the start.
void check_memory(const Estimate& estimate);

}  // namespace winnow::cli
