// Sparse or dense? The rules of GateOptions, in the order that include/winnow/steps.h gives.
#pragma once

#include <cstdint>

#include "winnow/plan.h"
#include "winnow/steps.h"

namespace winnow {

// none: run sparse. Knows no method, so it never returns `requested`.
DenseReason gate(const GateOptions& options, const StepContext& context, std::int64_t queries, std::int64_t keys);

// The value of that key for this call.
std::int64_t min_seq_len(const GateOptions& options, const StepContext& context);

// Throws Error("config") naming a key that says something about a layer or an expert that the model does not have.
void check_fits_model(const GateOptions& options, int num_layers, int num_experts);

// Throws Error("steps") if a context contradicts itself: expert, step, layer, their numbers or timestep out of range.
void validate(const StepContext& context);

}  // namespace winnow
