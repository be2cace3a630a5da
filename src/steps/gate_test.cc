// Every rule of the gate, its boundary and its precedence.
#include "steps/gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/message_of.h"
#include "winnow/error.h"

namespace winnow {
namespace {

StepContext at(int step, int layer, std::optional<double> timestep = {}) {
  StepContext context;
  context.step = step;
  context.layer = layer;
  context.timestep = timestep;
  return context;
}

TEST(Gate, NothingAskedRunsSparse) { EXPECT_EQ(gate({}, at(0, 0), 100, 100), DenseReason::none); }

TEST(Gate, FirstStepsAndLayers) {
  const GateOptions options{.skip_first_steps = 2, .skip_first_layers = 1};
  EXPECT_EQ(gate(options, at(1, 5), 100, 100), DenseReason::skip_first_steps);
  EXPECT_EQ(gate(options, at(2, 0), 100, 100), DenseReason::skip_first_layers);
  EXPECT_EQ(gate(options, at(2, 1), 100, 100), DenseReason::none);
}

TEST(Gate, FractionOfTheStepsIsRoundedUp) {
  const auto first_sparse = [](const GateOptions& options, int num_steps) {
    StepContext context = at(0, 0);
    context.num_steps = num_steps;
    while (context.step < num_steps && gate(options, context, 100, 100) != DenseReason::none) ++context.step;
    return context.step;
  };
  EXPECT_EQ(first_sparse({.skip_first_fraction = 0.1F}, 30), 3);
  EXPECT_EQ(first_sparse({.skip_first_fraction = 0.2F}, 50), 10);
  EXPECT_EQ(first_sparse({.skip_first_fraction = 0.1F}, 31), 4);
  EXPECT_EQ(first_sparse({.skip_first_fraction = 1.0F}, 7), 7);
  for (int tenths = 0; tenths <= 10; ++tenths)
    EXPECT_EQ(first_sparse({.skip_first_fraction = static_cast<float>(tenths) / 10.0F}, 10), tenths);
  EXPECT_EQ(first_sparse({.skip_first_steps = 5, .skip_first_fraction = 0.1F}, 30), 5);  // the longer wins
  EXPECT_EQ(first_sparse({.skip_first_steps = 1, .skip_first_fraction = 0.1F}, 30), 3);
  StepContext second = at(1, 0);
  second.num_steps = 30;
  EXPECT_EQ(gate({.skip_first_steps = 2, .skip_first_fraction = 0.1F}, second, 100, 100), DenseReason::skip_first_steps);
  EXPECT_EQ(gate({.skip_first_steps = 1, .skip_first_fraction = 0.1F}, second, 100, 100), DenseReason::skip_first_fraction);
}

TEST(Gate, ListedLayers) {
  const GateOptions options{.skip_first_layers = 1, .dense_layers = {7, 3}};
  EXPECT_EQ(gate(options, at(0, 0), 100, 100), DenseReason::skip_first_layers);
  EXPECT_EQ(gate(options, at(0, 3), 100, 100), DenseReason::dense_layers);
  EXPECT_EQ(gate(options, at(0, 7), 100, 100), DenseReason::dense_layers);
  EXPECT_EQ(gate(options, at(0, 4), 100, 100), DenseReason::none);
}

// "Silent fallback behind another override": overrides compose, key by key, and every dense call has its reason.
TEST(Gate, OverridesReplaceOnlyTheKeysTheyName) {
  GateOptions options{.skip_first_steps = 2, .skip_first_layers = 1, .disabled_until_timestep = 0.9};
  options.experts.low.skip_first_steps = 0;
  options.experts.low.disabled_until_timestep = std::optional<double>();
  options.branches.unconditional.skip_first_steps = 4;
  options.branches.unconditional.dense_layers = std::vector<int>{5};
  const auto reason = [&](int expert, Branch branch, int step, int layer, double timestep) {
    StepContext context = at(step, layer, timestep);
    context.expert = expert;
    context.branch = branch;
    return gate(options, context, 100, 100);
  };
  EXPECT_EQ(reason(0, Branch::conditional, 1, 5, 0.5), DenseReason::skip_first_steps);
  EXPECT_EQ(reason(0, Branch::conditional, 2, 5, 0.95), DenseReason::disabled_until_timestep);
  EXPECT_EQ(reason(0, Branch::conditional, 2, 5, 0.5), DenseReason::none);
  EXPECT_EQ(reason(1, Branch::conditional, 1, 5, 0.95), DenseReason::none);
  EXPECT_EQ(reason(1, Branch::conditional, 1, 0, 0.95), DenseReason::skip_first_layers);   // not overridden
  EXPECT_EQ(reason(1, Branch::unconditional, 3, 5, 0.95), DenseReason::skip_first_steps);  // the branch wins over the expert
  EXPECT_EQ(reason(1, Branch::unconditional, 4, 5, 0.95), DenseReason::dense_layers);
  EXPECT_EQ(reason(1, Branch::unconditional, 4, 4, 0.95), DenseReason::none);
}

TEST(Gate, ShortSequences) {
  const GateOptions options{.min_seq_len = 100};
  EXPECT_EQ(gate(options, at(0, 0), 99, 99), DenseReason::min_seq_len);
  EXPECT_EQ(gate(options, at(0, 0), 100, 100), DenseReason::none);
}

TEST(Gate, TimestepIsInclusive) {
  const GateOptions options{.disabled_until_timestep = 0.8};
  EXPECT_EQ(gate(options, at(0, 0, 0.800001), 100, 100), DenseReason::disabled_until_timestep);
  EXPECT_EQ(gate(options, at(0, 0, 0.8), 100, 100), DenseReason::none);
  EXPECT_EQ(gate(options, at(0, 0, 0.0), 100, 100), DenseReason::none);
}

TEST(Gate, MissingTimestepIsDense) {
  EXPECT_EQ(gate({.disabled_until_timestep = 0.8}, at(9, 9), 100, 100), DenseReason::missing_timestep);
  EXPECT_EQ(gate({}, at(9, 9), 100, 100), DenseReason::none);
}

TEST(Gate, CrossAttentionIsDenseEvenWithEqualLengths) {
  StepContext context = at(9, 9);
  EXPECT_EQ(gate({}, context, 100, 512), DenseReason::cross_attention);
  context.role = AttentionRole::cross;
  EXPECT_EQ(gate({}, context, 512, 512), DenseReason::cross_attention);
}

TEST(Gate, OptionsOutOfRangeNameTheirKey) {
  const auto refuses = [](const GateOptions& options, const char* key) {
    try {
      options.validate();
      ADD_FAILURE() << key << " was accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(key));
    }
  };
  refuses({.skip_first_steps = -1}, "skip_first_steps");
  refuses({.skip_first_layers = -1}, "skip_first_layers");
  refuses({.min_seq_len = -1}, "min_seq_len");
  refuses({.disabled_until_timestep = 1.5}, "disabled_until_timestep");
  refuses({.disabled_until_timestep = -0.1}, "disabled_until_timestep");
  refuses({.disabled_until_timestep = std::numeric_limits<double>::quiet_NaN()}, "disabled_until_timestep");
  refuses({.skip_first_fraction = 1.01F}, "skip_first_fraction");
  refuses({.skip_first_fraction = std::numeric_limits<float>::quiet_NaN()}, "skip_first_fraction");
  refuses({.dense_layers = {3, -1}}, "dense_layers");
  GateOptions nested;
  nested.experts.low.skip_first_fraction = -0.5F;
  refuses(nested, "experts.low.skip_first_fraction");
  nested = {};
  nested.branches.conditional.disabled_until_timestep = 2.0;
  refuses(nested, "branches.conditional.disabled_until_timestep");
  EXPECT_NO_THROW(GateOptions{}.validate());
}

TEST(Gate, OptionsAboutWhatTheModelDoesNotHaveNameTheirKey) {
  const auto refusal = [](const GateOptions& options, int num_experts) {
    return tests::message_of([&] { check_fits_model(options, 6, num_experts); });
  };
  EXPECT_EQ(refusal({.dense_layers = {5, 0}}, 1), "no error");
  EXPECT_THAT(refusal({.dense_layers = {5, 6}}, 1), testing::HasSubstr("dense_layers: expected layers from 0 to 5, got 6"));
  GateOptions nested;
  nested.experts.low.dense_layers = {9};
  EXPECT_THAT(refusal(nested, 2), testing::HasSubstr("experts.low.dense_layers: expected layers from 0 to 5, got 9"));
  EXPECT_THAT(refusal(nested, 1), testing::HasSubstr("experts.low: expected a model with two experts, got one expert"));
  nested = {};
  nested.experts.high.skip_first_steps = 3;
  nested.branches.unconditional.dense_layers = {0, 5};
  EXPECT_EQ(refusal(nested, 1), "no error");
  nested.branches.unconditional.dense_layers = {60};
  EXPECT_THAT(refusal(nested, 1), testing::HasSubstr("branches.unconditional.dense_layers"));
}

TEST(Gate, ContextsThatContradictThemselvesAreRefused) {
  EXPECT_NO_THROW(validate(at(0, 0, 1.0)));
  EXPECT_THROW(validate(at(-1, 0)), Error);
  EXPECT_THROW(validate(at(0, -1)), Error);
  EXPECT_THROW(validate(at(0, std::numeric_limits<int>::max())), Error);
  const auto refusal = [](const auto& change) {
    StepContext context = at(0, 0);
    change(context);
    return tests::message_of([&] { validate(context); });
  };
  EXPECT_THAT(refusal([](StepContext& c) { c.expert = -1; }), testing::HasSubstr("expert: expected 0 to 1, got -1"));
  EXPECT_THAT(refusal([](StepContext& c) { c.expert = 2; }), testing::HasSubstr("expert: expected 0 to 1, got 2"));
  EXPECT_THAT(refusal([](StepContext& c) { c.num_layers = 0; }), testing::HasSubstr("num_layers: expected 1 to 65536, got 0"));
  EXPECT_THAT(refusal([](StepContext& c) { c.num_layers = std::numeric_limits<int>::max(); }), testing::HasSubstr("num_layers"));
  EXPECT_THAT(refusal([](StepContext& c) { c.num_steps = 0; }), testing::HasSubstr("num_steps: expected a number >= 1, got 0"));
  EXPECT_THROW(validate(at(0, 0, 950.47)), Error);  // the scheduler's 0..1000 scale
  EXPECT_THROW(validate(at(0, 0, std::numeric_limits<double>::infinity())), Error);
}

}  // namespace
}  // namespace winnow
