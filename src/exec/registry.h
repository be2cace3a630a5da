// The executors: one record each, in order of preference.
#pragma once

#include <span>
#include <string>

#include "exec/attend_args.h"
#include "winnow/attend.h"

namespace winnow {

class DeviceWorkspace;
class Workspace;

struct Executor {
  const char* name;
  const char* isa;
  const char* computes_in;
  std::span<const DType> dtypes;   // of q, k, v; out may be any of f32, f16, bf16 on the CPU, and is alike on a GPU
  std::span<const int> head_dims;  // none: 1 to max_head_dim
  int max_head_dim;
  SkipGranule granule;
  bool only_by_name;                                            // never chosen by itself
  std::string (*lacks)(int gpu);                                // what this machine or build lacks; empty: available
  SkipCounts (*run)(const AttendArgs& args, Workspace& ws);     // null: it works on a GPU,
  void (*launch)(const AttendArgs& args, DeviceWorkspace& ws);  // where it queues the call

  Device device() const { return run != nullptr ? Device::cpu : Device::cuda; }
  std::string missing(int gpu = 0) const { return lacks(gpu); }
};
std::span<const Executor> executor_records();

// Where a call's memory is.
struct Place {
  Device device = Device::cpu;
  int gpu = 0;
  std::string text() const;  // "the cpu", "cuda:0"
  bool operator==(const Place&) const = default;
};

// The executor of that name, or if it is empty of the environment variable WINNOW_EXECUTOR, else the first that fits.
const Executor& executor_for(std::string_view name, DType dtype, std::int64_t head_dim, const Place& place = {});

// The executor of that name, or if it is empty the first one that is available and takes the inputs. `source` says in the
// error message where the name came from. Throws Error if there is none.
const Executor& choose_executor(std::string_view name, const char* source, DType dtype, std::int64_t head_dim, const Place& place = {});

}  // namespace winnow
