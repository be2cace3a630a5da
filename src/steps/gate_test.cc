// Every rule of the gate, its boundary and its precedence.
#include "steps/gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

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
  EXPECT_NO_THROW(GateOptions{}.validate());
}

TEST(Gate, ContextsThatContradictThemselvesAreRefused) {
  EXPECT_NO_THROW(validate(at(0, 0, 1.0)));
  EXPECT_THROW(validate(at(-1, 0)), Error);
  EXPECT_THROW(validate(at(0, -1)), Error);
  EXPECT_THROW(validate(at(0, 0, 950.47)), Error);  // the scheduler's 0..1000 scale
  EXPECT_THROW(validate(at(0, 0, std::numeric_limits<double>::infinity())), Error);
}

}  // namespace
}  // namespace winnow
