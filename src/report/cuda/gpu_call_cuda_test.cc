// measure_call() on a GPU.
#include <gmock/gmock.h>

#include "exec/cuda/cuda_case.h"
#include "report/attention_call.h"
#include "winnow/error.h"

namespace winnow::report {
namespace {

Tensor random_tensor(DType dtype, std::int64_t D, std::uint64_t seed) {
  Tensor t(dtype, {1, 1000, 2, D});
  std::vector<float> x(static_cast<std::size_t>(t.numel()));
  fill_normal(x, seed);
  for (std::size_t i = 0; i < x.size(); ++i) put(t, static_cast<std::int64_t>(i), x[i]);
  return t;
}

struct Inputs {
  explicit Inputs(DType dtype = DType::bf16, std::int64_t D = 128)
      : q(random_tensor(dtype, D, 1)), k(random_tensor(dtype, D, 2)), v(random_tensor(dtype, D, 3)) {}
  AttentionInputs call() const { return {{}, q, k, v}; }
  CallMeasurement measure(const AttentionConfig& config) const {
    CallOptions options;
    options.repeat = 3;
    options.gpu = 0;
    return measure_call(call(), exact_rows(call(), 40), config, options);
  }
  Tensor q, k, v;
};

using GpuCalls = GpuTest;

TEST_F(GpuCalls, Dense) {
  const CallMeasurement m = Inputs().measure({});
  EXPECT_EQ(m.executor, executor_for({}, DType::bf16, 128, {Device::cuda, 0}).name);
  EXPECT_EQ(m.density, 1.0);
  EXPECT_EQ(m.rows, 40);
  EXPECT_LT(m.errors.rel_l2, 1e-2);
  EXPECT_EQ(m.errors.rel_l2, m.dense_errors.rel_l2);
  EXPECT_GT(m.kernel_seconds, 0.0);
  EXPECT_LT(m.kernel_seconds, 1.0);
  EXPECT_FALSE(m.mass_recall.has_value());
}

TEST_F(GpuCalls, SparseHasTheErrorsOfTheCpu) {
  const Inputs in;
  AttentionConfig config;
  config.method = MeanPool{.cdf = 0.3F, .neighbors = false, .means = false};
  const CallMeasurement gpu = in.measure(config);
  CallOptions options;
  options.repeat = 0;
  const CallMeasurement cpu = measure_call(in.call(), exact_rows(in.call(), 40), config, options);
  EXPECT_LT(gpu.density, 0.9);
  EXPECT_EQ(gpu.density, cpu.density);
  EXPECT_EQ(gpu.mass_recall, cpu.mass_recall);
  EXPECT_NEAR(gpu.errors.rel_l2, cpu.errors.rel_l2, 0.02 * cpu.errors.rel_l2);
  EXPECT_GT(gpu.errors.rel_l2, 10 * gpu.dense_errors.rel_l2);
}

TEST_F(GpuCalls, SkipSoftmaxCountsWhatItDrops) {
  // Keys are visited from the last one on: those that score 0 after those that score 1.
  Inputs in;
  for (std::int64_t i = 0; i < in.q.numel(); ++i) {
    put(in.q, i, 1.0F);
    put(in.k, i, i < in.k.numel() / 2 ? 0.0F : 0.0884F);
  }
  AttentionConfig config;
  config.method = SkipSoftmax{.threshold = 0.5F};
  const CallMeasurement some = in.measure(config);
  EXPECT_LT(some.density, 0.95);
  EXPECT_GT(some.density, 0.5);
  EXPECT_LT(some.mass_recall.value_or(2.0), 1.0);
  config.method = SkipSoftmax{.threshold = 1e-6F};
  EXPECT_EQ(in.measure(config).density, 1.0);
}

TEST_F(GpuCalls, BadInputs) {
  EXPECT_THROW(Inputs(DType::f32).measure({}), Error);
  EXPECT_THROW(Inputs(DType::bf16, 96).measure({}), Error);
  AttentionConfig config;
  config.executor = "scalar";
  EXPECT_THROW(Inputs().measure(config), Error);
  EXPECT_THROW(check_gpu(1000), Error);
}

}  // namespace
}  // namespace winnow::report
