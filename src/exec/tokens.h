// Tokens under a layout: what every executor needs.
#pragma once

#include <cstdint>

#include "exec/attend_args.h"

namespace winnow {

// A null list means that positions are tokens.
inline std::int64_t token_at(const std::int32_t* tokens, std::int64_t position) { return tokens != nullptr ? tokens[position] : position; }

// Writes the outputs of queries that are in no tile: O = 0, lse = -inf, inv_l = 0.
void clear_missing_queries(const AttendArgs& args);

}  // namespace winnow
