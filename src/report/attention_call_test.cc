// The microscope on small random calls.
#include "report/attention_call.h"

#include <gtest/gtest.h>

#include "winnow/error.h"

namespace winnow::report {
namespace {

Tensor random_tensor(std::int64_t S, std::uint64_t seed) {
  Tensor t(DType::f32, {1, S, 2, 16});
  // Any well-spread values do.
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    const std::uint64_t mixed = (static_cast<std::uint64_t>(i) + seed * 7919U) * 0x9E3779B97F4A7C15U;
    t.as<float>()[i] = static_cast<float>(static_cast<double>(mixed >> 40U) / static_cast<double>(1U << 24U)) * 2.0F - 1.0F;
  }
  return t;
}

struct Inputs {
  Tensor q = random_tensor(700, 1), k = random_tensor(700, 2), v = random_tensor(700, 3);
};

CallOptions quick() {
  CallOptions options;
  options.rows = 33;
  options.repeat = 2;
  return options;
}

TEST(MeasureCall, DenseIsExactAndHasNoRecall) {
  const Inputs in;
  const CallMeasurement m = measure_call(in.q, in.k, in.v, {}, quick());
  EXPECT_EQ(m.density, 1.0);
  EXPECT_LT(m.errors.rel_l2, 1e-2);  // bf16 products at worst
  EXPECT_EQ(m.errors.rel_l2, m.dense_errors.rel_l2);
  EXPECT_FALSE(m.recall.has_value());
  EXPECT_EQ(m.rows, 33);
  EXPECT_EQ(m.repeat, 2);
  EXPECT_GT(m.dense_seconds, 0.0);
  EXPECT_GT(m.kernel_seconds, 0.0);
}

TEST(MeasureCall, SparseHasErrorsAndRecall) {
  const Inputs in;
  AttentionConfig config;
  config.method = MeanPool{.cdf = 0.3F, .neighbors = false, .means = false};
  config.gate.skip_first_steps = 5;  // ignored
  const CallMeasurement m = measure_call(in.q, in.k, in.v, config, quick());
  EXPECT_LT(m.density, 0.6);
  EXPECT_GT(m.errors.rel_l2, m.dense_errors.rel_l2);
  EXPECT_LT(m.errors.cosine, 1.0);
  ASSERT_TRUE(m.recall.has_value());
  EXPECT_GT(m.recall->mass, 0.0);
  EXPECT_LE(m.recall->set, 1.0);
  EXPECT_GT(m.plan_share(), 0.0);
}

TEST(MeasureCall, MoreRowsThanThereAreMeansAllRows) {
  const Inputs in;
  CallOptions options = quick();
  options.rows = 100000;
  EXPECT_EQ(measure_call(in.q, in.k, in.v, {}, options).rows, 700);
}

TEST(MeasureCall, BadInputsAndCancel) {
  const Inputs in;
  const Tensor flat(DType::f32, {4, 4});
  EXPECT_THROW(measure_call(flat, in.k, in.v, {}, quick()), Error);
  EXPECT_THROW(measure_call(in.q, in.k, random_tensor(699, 1), {}, quick()), Error);
  CallOptions options = quick();
  options.rows = 0;
  EXPECT_THROW(measure_call(in.q, in.k, in.v, {}, options), Error);
  options = quick();
  options.progress = [](const ProgressEvent& event) { return event.stage != "reference"; };
  EXPECT_THROW(measure_call(in.q, in.k, in.v, {}, options), Cancelled);
}

}  // namespace
}  // namespace winnow::report
