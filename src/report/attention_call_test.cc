// The microscope on small random calls.
#include "report/attention_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/message_of.h"
#include "winnow/error.h"
#include "winnow/workspace.h"

namespace winnow::report {
namespace {

using ::testing::HasSubstr;
using tests::message_of;

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
  AttentionInputs call() const { return {{}, q, k, v}; }
  CallMeasurement measure(const AttentionConfig& config, const CallOptions& options) const {
    return measure_call(call(), exact_rows(call(), 33), config, options);
  }
};

CallOptions quick() {
  CallOptions options;
  options.repeat = 2;
  return options;
}

TEST(MeasureCall, DenseIsExactAndHasNoRecall) {
  const Inputs in;
  const CallMeasurement m = in.measure({}, quick());
  EXPECT_EQ(m.density, 1.0);
  EXPECT_LT(m.errors.rel_l2, 1e-2);  // bf16 products at worst
  EXPECT_EQ(m.errors.rel_l2, m.dense_errors.rel_l2);
  EXPECT_FALSE(m.mass_recall.has_value());
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
  const CallMeasurement m = in.measure(config, quick());
  EXPECT_LT(m.density, 0.6);
  EXPECT_GT(m.errors.rel_l2, m.dense_errors.rel_l2);
  EXPECT_LT(m.errors.cosine, 1.0);
  EXPECT_GT(m.mass_recall.value_or(0.0), 0.0);
  EXPECT_LT(m.mass_recall.value_or(1.0), 1.0);
  EXPECT_LE(m.set_recall.value_or(2.0), 1.0);
  EXPECT_GT(m.plan_share(), 0.0);
}

TEST(MeasureCall, SkipSoftmaxHasTheMassOfItsOwnRowSums) {
  // The first 64 keys have logit 1 and the other 636 logit 0, so that their tiles are dropped wherever 1/e is below the threshold.
  Inputs in;
  std::fill_n(in.q.as<float>(), in.q.numel(), 1.0F);
  for (std::int64_t i = 0; i < in.k.numel(); ++i) in.k.as<float>()[i] = i < 64 * 2 * 16 ? 0.25F : 0.0F;
  AttentionConfig config;
  config.method = SkipSoftmax{.threshold = 0.5F};
  const CallMeasurement some = in.measure(config, quick());
  EXPECT_LT(some.density, 1.0);
  EXPECT_NEAR(some.mass_recall.value_or(0.0), 64.0 * std::exp(1.0) / (64.0 * std::exp(1.0) + 636.0), 1e-4);
  EXPECT_FALSE(some.set_recall.has_value());
  config.method = SkipSoftmax{.threshold = 0.25F};
  EXPECT_NEAR(in.measure(config, quick()).mass_recall.value_or(0.0), 1.0, 1e-6);
}

TEST(MeasureCall, WithoutTimingThereAreNoTimes) {
  const Inputs in;
  CallOptions options;
  options.repeat = 0;
  const CallMeasurement m = in.measure({}, options);
  EXPECT_EQ(m.repeat, 0);
  EXPECT_EQ(m.speedup(), 0.0);
  EXPECT_EQ(m.plan_share(), 0.0);
}

TEST(ExactRows, F32AgreesWithTheReference) {
  const Inputs in;
  const ExactRows f32 = f32_rows(in.call());
  const ExactRows f64 = exact_rows(in.call(), 100000);
  EXPECT_EQ(f64.out.view().size(1), 700);
  EXPECT_EQ(f64.step, 1);
  EXPECT_LT(rel_l2(f32.out, f64.out), 1e-5);
}

TEST(MeasureCall, BadInputsAndCancel) {
  const Inputs in;
  const ExactRows exact = exact_rows(in.call(), 33);
  const Tensor flat(DType::f32, {4, 4});
  const Tensor shorter = random_tensor(699, 1);
  EXPECT_THROW(measure_call({{}, flat, in.k, in.v}, exact, {}, quick()), Error);
  EXPECT_THROW(measure_call({{}, in.q, in.k, shorter}, exact, {}, quick()), Error);
  EXPECT_THROW(exact_rows({{}, flat, in.k, in.v}, 33), Error);
  EXPECT_THROW(exact_rows(in.call(), 0), Error);
  AttentionConfig budget;
  budget.method = MeanPool{};
  budget.budget.emplace();
  Workspace ws;
  EXPECT_THAT(message_of([&] { in.measure(budget, quick()); }), HasSubstr("budget: expected none"));
  EXPECT_THAT(message_of([&] { density_of(in.call(), budget, ws); }), HasSubstr("budget: expected none"));
  CallOptions options = quick();
  options.repeat = -1;
  EXPECT_THROW(in.measure({}, options), Error);
  options = quick();
  options.progress = [](const ProgressEvent& event) { return event.stage != "recall"; };
  EXPECT_THROW(in.measure({}, options), Cancelled);
}

}  // namespace
}  // namespace winnow::report
