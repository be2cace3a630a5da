// One setting on the inputs of one attention call, again and again, on the CPU or on a GPU. For attention_call.cc.
#pragma once

#include <memory>
#include <string>

#include "winnow/engine.h"
#include "winnow/select.h"
#include "winnow/session.h"
#include "winnow/tensor.h"
#include "winnow/workspace.h"

namespace winnow::report {

struct CallRun {
  std::string executor;
  double density = 1.0;
  SelectReport selected;  // of a method that selects tiles
  double plan_seconds = 0.0;
  double attend_seconds = 0.0;
};

class CallRunner {
 public:
  virtual ~CallRunner() = default;
  virtual CallRun run() = 0;
  virtual TensorView out() = 0;  // [B,S,H,D] of the last run, in the host's memory
  virtual TensorView lse() = 0;  // [B,H,S] f32, natural log; runs once more
};

// `call` and `ws` live longer than the runner, and the setting has passed check_single_call(). Throw Error if it is not one for the place.
std::unique_ptr<CallRunner> cpu_runner(const AttentionInputs& call, const AttentionConfig& config, Workspace& ws);

// The inputs of a call in the memory of a GPU, which several settings share.
class GpuCall;
std::shared_ptr<GpuCall> on_gpu(const AttentionInputs& call, int gpu);
// Plans are made by the CPU; their time includes the copy to the GPU.
std::unique_ptr<CallRunner> gpu_runner(std::shared_ptr<GpuCall> call, const AttentionConfig& config, Workspace& ws);

}  // namespace winnow::report
