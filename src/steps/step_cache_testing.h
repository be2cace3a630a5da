// A host of the step cache for its tests: a model of two blocks that work in place.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/numeric.h"
#include "steps/step_cache.h"
#include "winnow/error.h"
#include "winnow/tensor.h"
#include "winnow/workspace.h"

namespace winnow::steps_testing {

inline StepCacheConfig first_block(float high = 0.05F, float low = 0.2F) {
  StepCacheConfig config;
  config.method = FirstBlockCache{.threshold_high = high, .threshold_low = low};
  config.max_consecutive_skips = 100;
  config.min_steps = 0;
  return config;
}

// `high` steps of expert 0, then `low` of expert 1.
inline std::vector<int> schedule(int high, int low) {
  std::vector<int> experts(static_cast<std::size_t>(high), 0);
  experts.insert(experts.end(), static_cast<std::size_t>(low), 1);
  return experts;
}

// A host: x starts at `input`; its blocks add `first` and `rest`, in place.
struct Model {
  std::int64_t tokens = 3;
  std::int64_t width = 5;
  DType dtype = DType::f32;
  float input = 1.0F;
  float first = 1.0F;
  float rest = 10.0F;
  std::optional<int> throws_in_block;
  std::unique_ptr<Workspace> ws = std::make_unique<Workspace>();  // a Model can be moved
  int blocks_run = 0;

  struct Result {
    CacheReason reason;
    float x;
  };

  void add(const TensorView& x, float value) const {
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      if (dtype == DType::f32) x.as<float>()[i] += value;
      if (dtype == DType::bf16) x.as<bf16>()[i] = to_bf16(to_f32(x.as<bf16>()[i]) + value);
      if (dtype == DType::f16) x.as<f16>()[i] = to_f16(to_f32(x.as<f16>()[i]) + value);
    }
  }
  float value(const TensorView& x) const {
    return dtype == DType::f32 ? x.as<float>()[0] : dtype == DType::bf16 ? to_f32(x.as<bf16>()[0]) : to_f32(x.as<f16>()[0]);
  }
  void block(int index, const TensorView& x) {
    if (throws_in_block == index) throw Error("host", "block failed");
    ++blocks_run;
    add(x, index == 0 ? first : rest);
  }

  Result run(StepCache& cache, int step, std::uint64_t request = 0, Branch branch = Branch::conditional, const TensorView& time = {}) {
    const Tensor x(dtype, {tokens, width});
    add(x, input);
    const Workspace::Scope scope(*ws);
    CachedForward forward = cache.forward(request, step, branch, Grid{1, 1, tokens});
    if (!forward.before_blocks(x, time, time, *ws)) {
      block(0, x);
      if (!forward.after_first_block(x)) {
        block(1, x);
        forward.after_blocks(x);
      }
    }
    return {forward.reason(), value(x)};
  }
};

}  // namespace winnow::steps_testing
