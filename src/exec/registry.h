// The executors: one record each, in order of preference.
#pragma once

#include <span>
#include <string>

#include "exec/attend_args.h"
#include "winnow/attend.h"

namespace winnow {

class Workspace;

struct Executor {
  const char* name;
  const char* isa;
  const char* computes_in;
  std::span<const DType> dtypes;  // of q, k, v; out may be any of f32, f16, bf16
  int max_head_dim;
  SkipGranule granule;
  bool only_by_name;         // never chosen by itself
  std::string (*missing)();  // what this machine or build lacks; empty: available
  SkipCounts (*run)(const AttendArgs& args, Workspace& ws);
};
std::span<const Executor> executor_records();

// The executor of that name, or if it is empty the first one that is available and takes the inputs. `source` says in the
// error message where the name came from. Throws Error if there is none.
const Executor& choose_executor(std::string_view name, const char* source, DType dtype, std::int64_t head_dim);

}  // namespace winnow
