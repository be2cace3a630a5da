// How Winnow talks back: the library itself never prints and never exits.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace winnow {

enum class Severity { info, warning };

struct Diagnostic {
  Severity severity = Severity::info;
  std::string_view code;     // stable, machine-readable: "gate.missing_timestep"
  std::string_view message;  // one sentence for people
};
// Called on the thread that made the call. May be empty.
using Diagnostics = std::function<void(const Diagnostic&)>;

struct ProgressEvent {
  std::string_view stage;  // "load", "denoise", "decode", "write"
  int step = 0;            // 0-based step that is running
  int num_steps = 0;
  int layer = 0;
  int num_layers = 0;
  double density = 1.0;  // of this step's self-attention so far
  double seconds = 0.0;  // since the stage began
};
// Called at least once per layer. Returning false cancels: the call throws Cancelled. May be empty.
using Progress = std::function<bool(const ProgressEvent&)>;

}  // namespace winnow
