// Budgets from 1/l: the signal, both maps, and what a session remembers.
#include "steps/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "winnow/error.h"

namespace winnow {
namespace {

using testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(MeanLogL, IsPerHeadOverBatchAndRows) {
  const Tensor inv_l(DType::f32, {2, 3, 4});
  for (std::int64_t i = 0; i < 24; ++i) inv_l.as<float>()[i] = i / 4 % 3 == 1 ? 0.25F : 0.5F;
  inv_l.as<float>()[0] = 0.0F;  // a row without keys
  inv_l.as<float>()[8] = std::numeric_limits<float>::quiet_NaN();
  std::vector<double> out(3);
  mean_log_l(inv_l, out);
  EXPECT_DOUBLE_EQ(out[0], std::log(2.0));
  EXPECT_DOUBLE_EQ(out[1], std::log(4.0));
  EXPECT_TRUE(std::isnan(out[2]));
  mean_log_l(inv_l.view().slice(2, 0, 1).slice(0, 0, 1), out);  // strided; head 0 has nothing but the empty row
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_DOUBLE_EQ(out[1], std::log(4.0));
}

TEST(FreeMap, NormalDistribution) {
  EXPECT_NEAR(normal_cdf(1.959963985), 0.975, 1e-9);
  EXPECT_NEAR(normal_quantile(0.975), 1.959963985, 1e-8);
  EXPECT_NEAR(normal_quantile(1e-12), -7.034484, 1e-5);
}

// methods.md 6, checked by hand: N = 4752, mean ln l = 2.180: sigma = 4.1150 - 2.0881 = 2.027, keep = Phi(1.6449 - .7746 * 2.027).
TEST(FreeMap, KnownValue) {
  EXPECT_NEAR(free_keep(2.180, 4752, 0.95, 0.6), normal_cdf(1.644854 - 0.774597 * (std::sqrt(2 * std::log(4752.0)) - std::sqrt(4.36))),
              1e-6);
  EXPECT_NEAR(free_keep(2.180, 4752, 0.95, 0.6), 0.530, 0.002);
  EXPECT_NEAR(free_keep(std::log(4752.0), 4752, 0.95, 0.6), 0.95, 1e-9);  // flat: every tile alike
  EXPECT_EQ(free_keep(kNan, 4752, 0.95, 0.6), 1.0);
}

TEST(FreeMap, PeakedHeadsKeepLess) {
  double last = 0.0;
  for (double a = 0.0; a < 8.4; a += 0.2) {
    const double keep = free_keep(a, 4752, 0.95, 0.6);
    EXPECT_GE(keep, last);
    last = keep;
  }
}

TEST(BudgetMap, LineIsLeastSquaresAndClampedOutside) {
  const std::vector<std::array<double, 2>> points = {{-4.0, 0.2}, {-2.0, 0.4}, {-3.0, 0.3}, {-1.0, 0.5}};
  const BudgetMap map = fit_line(points);
  EXPECT_NEAR(map.keep(2.5), 0.65, 1e-12);
  EXPECT_NEAR(map.keep(9.0), 0.8, 1e-12);
  EXPECT_NEAR(map.keep(0.0), 0.5, 1e-12);
  EXPECT_EQ(map.keep(kNan), 1.0);
  const std::vector<std::array<double, 2>> same = {{-4.0, 0.2}, {-4.0, 0.4}};
  EXPECT_THROW(fit_line(same), Error);
  EXPECT_THROW(fit_line({}), Error);
}

TEST(BudgetMap, IsotonicPoolsViolators) {
  const std::vector<std::array<double, 2>> points = {{-5.0, 0.1}, {-4.0, 0.4}, {-3.0, 0.2}, {-2.0, 0.6}};
  const BudgetMap map = fit_isotonic(points);
  EXPECT_THAT(map.x, testing::ElementsAre(-5.0, -3.5, -2.0));
  EXPECT_THAT(map.sparsity, testing::ElementsAre(testing::DoubleEq(0.1), testing::DoubleEq(0.3), testing::DoubleEq(0.6)));
  EXPECT_NEAR(map.keep(4.25), 0.8, 1e-12);  // between
  const std::vector<std::array<double, 2>> falling = {{-5.0, 0.9}, {-4.0, 0.5}, {-3.0, 0.1}};
  EXPECT_THAT(fit_isotonic(falling).sparsity, testing::ElementsAre(testing::DoubleEq(0.5)));
  const std::vector<std::array<double, 2>> ties = {{-5.0, 0.2}, {-5.0, 0.6}, {-4.0, 0.8}};
  EXPECT_THAT(fit_isotonic(ties).x, testing::ElementsAre(-5.0, -4.0));
}

TEST(BudgetMap, SafetyLeavesAShareAboveTheMap) {
  std::vector<std::array<double, 2>> points;
  for (int i = 0; i < 101; ++i) points.push_back({-5.0 + 0.01 * i, 0.4 + (i % 2 == 0 ? 0.1 : -0.1)});
  BudgetMap map = fit_line(points);
  make_safe(map, points, 0.1);
  int over = 0;
  for (const auto& [x, s] : points) over += 1.0 - map.keep(-x) > s + 1e-2 ? 1 : 0;
  EXPECT_LE(over, 11);
  EXPECT_NEAR(map.keep(4.5), 0.7, 0.02);
}

TEST(Budget, ClampedAndMovedToAMean) {
  std::vector<float> keep = {0.1F, 0.5F, 0.9F};
  clamp_and_move(keep, 0.2, 0.8, 0.0);
  EXPECT_THAT(keep, testing::ElementsAre(0.2F, 0.5F, 0.8F));
  keep = {0.1F, 0.5F, 0.9F};
  clamp_and_move(keep, 0.02, 1.0, 0.3);
  EXPECT_NEAR((keep[0] + keep[1] + keep[2]) / 3, 0.3F, 1e-5F);
  EXPECT_NEAR(keep[2] - keep[1], 0.4F, 1e-5F);
  EXPECT_EQ(keep[0], 0.02F);
  clamp_and_move(keep, 0.5, 0.6, 0.1);  // out of reach: as near as the clamps allow
  EXPECT_THAT(keep, testing::Each(0.5F));
}

TEST(HeadSignals, BelongToOneExpertBranchLayerAndLength) {
  HeadSignals signals;
  StepContext context;
  context.num_layers = 3;
  context.layer = 1;
  EXPECT_TRUE(signals.find(context, 100, 2).empty());
  signals.store(context, 100, 2)[1] = 5.0;
  ASSERT_EQ(signals.find(context, 100, 2).size(), 2U);
  EXPECT_EQ(signals.find(context, 100, 2)[1], 5.0);
  EXPECT_TRUE(signals.find(context, 101, 2).empty());
  EXPECT_TRUE(signals.find(context, 100, 3).empty());
  for (const auto change : {0, 1, 2}) {
    StepContext other = context;
    if (change == 0) other.expert = 1;
    if (change == 1) other.branch = Branch::unconditional;
    if (change == 2) other.layer = 2;
    EXPECT_TRUE(signals.find(other, 100, 2).empty()) << change;
  }
  const double* before = signals.store(context, 100, 2).data();
  context.expert = 1;
  context.layer = 2;
  signals.store(context, 100, 2);
  context.expert = 0;
  context.layer = 1;
  EXPECT_EQ(signals.find(context, 100, 2).data(), before);  // nothing moved
  signals.clear();
  EXPECT_TRUE(signals.find(context, 100, 2).empty());
  context.expert = 7;
  EXPECT_TRUE(signals.store(context, 100, 2).empty());
}

TEST(SignalBudget, RefusalsNameTheirKey) {
  const auto refuses = [](const SignalBudget& budget, const char* key) {
    try {
      budget.validate();
      ADD_FAILURE() << key;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(key));
    }
  };
  EXPECT_NO_THROW(SignalBudget{}.validate());
  refuses({.map = ""}, "budget.map");
  refuses({.mass = 1.0F}, "budget.mass");
  refuses({.between = -0.1F}, "budget.between");
  refuses({.min_keep = 0.0F}, "budget.min_keep");
  refuses({.min_keep = 0.5F, .max_keep = 0.4F}, "budget.max_keep");
  refuses({.mean_keep = std::numeric_limits<float>::quiet_NaN()}, "budget.mean_keep");
  refuses({.max_keep = 0.5F, .mean_keep = 0.6F}, "budget.mean_keep: expected a number in [0.02,0.5], got 0.6");
  refuses({.mean_keep = 1e-9F}, "budget.mean_keep: expected a number in [0.02,1], got 1e-09");
  refuses({.map = "budget.json", .mass = 0.9F}, "budget.map: expected free beside mass or between, got budget.json");
  refuses({.map = "budget.json", .between = 0.5F}, "budget.map");
}

}  // namespace
}  // namespace winnow
