// Coefficients and tables of the solvers against numbers computed in f64 from their formulas.
#include "dit/scheduler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "winnow/error.h"

namespace winnow::dit {
namespace {

Schedule unipc(int steps, double shift, SigmaMode mode = SigmaMode::diffusers) {
  ScheduleOptions options;
  options.steps = steps;
  options.shift = shift;
  options.sigma_mode = mode;
  return make_schedule(options);
}

// The sigmas before they are rounded to f32.
std::vector<double> exact_sigmas(int steps, double shift) {
  std::vector<double> sigmas;
  for (int i = 0; i < steps; ++i) {
    const double x = 1.0 + (0.001 - 1.0) * i / steps;
    sigmas.push_back(shift * x / (1.0 + (shift - 1.0) * x));
  }
  sigmas[0] -= 1e-6;
  sigmas.push_back(0.0);
  return sigmas;
}

TEST(UniPC, CorrectorCoefficients) {
  struct Expected {
    int steps;
    double shift;
    int step;
    double h, B, r, rho1, rho2;  // NaN: not checked
  };
  const double skip = std::numeric_limits<double>::quiet_NaN();
  for (const Expected& e :
       {Expected{40, 12, 2, 0.7190957, -0.5128074, -10.66063, 0.0141714, 0.5452430},
        Expected{40, 12, 3, 0.4321049, skip, skip, 0.0623648, 0.4735324},
        Expected{40, 12, 39, 0.6996857, skip, -0.6082295, 0.1027978, 0.4550391}, Expected{50, 5, 2, skip, skip, skip, 0.0130675, 0.5459124},
        Expected{50, 5, 3, skip, skip, skip, 0.0621519, 0.4732822}, Expected{50, 5, 49, skip, skip, skip, 0.1029249, 0.4540951}}) {
    const UniPCCoefficients c = unipc_corrector(exact_sigmas(e.steps, e.shift), e.step, 2);
    const auto check = [&](double ours, double expected, double unit) {
      if (!std::isnan(expected)) {
        EXPECT_NEAR(ours, expected, 1e-6 * unit) << e.steps << " " << e.step;
      }
    };
    check(c.h, e.h, 1.0);
    check(c.B, e.B, 1.0);
    check(c.r, e.r, 10.0);  // given to seven digits
    check(c.rho1, e.rho1, 1.0);
    check(c.rho2, e.rho2, 1.0);
  }
}

TEST(UniPC, TheLastPredictionIsX0) {
  const UniPCCoefficients c = unipc_predictor(exact_sigmas(20, 5), 19, 1);
  EXPECT_EQ(c.sigma_ratio, 0.0);
  EXPECT_EQ(c.x0, 1.0);
}

// A velocity that points straight from noise to data is integrated exactly by every order and solver.
TEST(Solvers, FollowAStraightLine) {
  for (const Solver solver : {Solver::unipc, Solver::euler}) {
    for (const int steps : {1, 2, 3, 10}) {
      ScheduleOptions options;
      options.solver = solver;
      options.steps = steps;
      options.shift = 3.0;
      std::vector<float> noise(1000);
      std::vector<float> data(1000);
      std::vector<float> velocity(1000);
      for (std::size_t i = 0; i < 1000; ++i) {
        noise[i] = std::sin(static_cast<float>(i));
        data[i] = std::cos(3.0F * static_cast<float>(i));
        velocity[i] = noise[i] - data[i];
      }
      Sampler sampler(options, 1000);
      const float sigma = sampler.schedule().sigmas[0];
      std::vector<float> x(1000);
      for (std::size_t i = 0; i < 1000; ++i) x[i] = sigma * noise[i] + (1.0F - sigma) * data[i];
      for (int step = 0; step < steps; ++step) sampler.step(step, velocity, x);
      for (std::size_t i = 0; i < 1000; ++i) ASSERT_NEAR(x[i], data[i], 2e-6) << steps;
    }
  }
}

TEST(Schedules, StepsOfTheHighNoiseExpert) {
  struct Row {
    int steps;
    double shift, boundary;
    int diffusers, wan, euler;
  };
  for (const Row& row :
       {Row{40, 12, 875, 26, 26, 25}, Row{50, 12, 875, 32, 32, 32}, Row{20, 12, 875, 13, 13, 13}, Row{40, 5, 900, 15, 15, 14},
        Row{40, 3, 875, 13, 12, 12}, Row{50, 3, 875, 16, 15, 15}, Row{30, 3, 875, 10, 9, 9}}) {
    EXPECT_EQ(high_noise_steps(unipc(row.steps, row.shift), row.boundary), row.diffusers) << row.steps;
    EXPECT_EQ(high_noise_steps(unipc(row.steps, row.shift, SigmaMode::wan), row.boundary), row.wan) << row.steps;
    ScheduleOptions options;
    options.solver = Solver::euler;
    options.steps = row.steps;
    options.shift = row.shift;
    options.euler_double_shift = true;
    EXPECT_EQ(high_noise_steps(make_schedule(options), row.boundary), row.euler) << row.steps;
  }
}

TEST(Schedules, KnownTimesteps) {
  const std::vector<double> high{999, 997, 995, 993, 990, 988, 985, 982, 979, 976};
  const Schedule schedule = unipc(40, 12);
  for (std::size_t i = 0; i < high.size(); ++i) EXPECT_EQ(schedule.timesteps[i], high[i]);
  EXPECT_EQ(schedule.timesteps.back(), 242);
  EXPECT_EQ(unipc(50, 5).timesteps.back(), 96);
  EXPECT_EQ(unipc(40, 12, SigmaMode::wan).timesteps.back(), 235);
  EXPECT_EQ(schedule.sigmas.back(), 0.0F);
  EXPECT_EQ(schedule.sigmas[0], 0.999999F);
}

TEST(Schedules, RefuseNonsense) {
  EXPECT_THROW(unipc(0, 5), Error);
  EXPECT_THROW(unipc(10, 0), Error);
  EXPECT_THROW(unipc(10, std::numeric_limits<double>::quiet_NaN()), Error);
}

}  // namespace
}  // namespace winnow::dit
