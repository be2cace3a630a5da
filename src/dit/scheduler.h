// Flow-matching schedules and solvers: FlowMatchEulerDiscrete and UniPCMultistep (bh2, order <= 2, x0 prediction).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "winnow/engine.h"
#include "winnow/tensor.h"

namespace winnow::dit {

struct ScheduleOptions {
  Solver solver = Solver::unipc;
  int steps = 30;
  double shift = 1.0;                           // sigma = shift x / (1 + (shift - 1) x)
  SigmaMode sigma_mode = SigmaMode::diffusers;  // of UniPC
  bool euler_double_shift = false;              // FlowMatchEulerDiscreteScheduler.set_timesteps(n) applies the shift twice
  std::int64_t num_train_timesteps = 1000;
  int solver_order = 2;
  bool lower_order_final = true;
};

struct Schedule {
  std::vector<float> sigmas;      // steps + 1; the last is 0
  std::vector<double> timesteps;  // what the model is given: integers for UniPC, 1000 sigma for Euler
};
// Throws Error if steps < 1 or shift is not a positive finite number.
Schedule make_schedule(const ScheduleOptions& options);
// Steps with timestep >= boundary (in timesteps); all of them without one.
int high_noise_steps(const Schedule& schedule, double boundary);

// Numbers of one UniPC update, see scheduler.cc. lambda = ln((1 - sigma) / sigma).
struct UniPCCoefficients {
  int order = 1;
  double sigma_ratio = 0.0;                                  // of the sample
  double x0 = 0.0;                                           // of m0; all below are multiplied by alpha * expm1(-h) already
  double difference = 0.0;                                   // of (m1 - m0)
  double current = 0.0;                                      // of (x0_i - m0), corrector only
  double h = 0.0, B = 0.0, r = 0.0, rho1 = 0.0, rho2 = 0.0;  // for tests
};
UniPCCoefficients unipc_predictor(std::span<const double> sigmas, int step, int order);
UniPCCoefficients unipc_corrector(std::span<const double> sigmas, int step, int order);

// Advances latents through a schedule. All state is f32 and preallocated: step() allocates nothing.
class Sampler {
 public:
  Sampler(const ScheduleOptions& options, std::size_t elements);
  const Schedule& schedule() const { return schedule_; }
  int num_steps() const { return options_.steps; }
  // latents := latents at sigmas[step + 1]. To be called for step 0, 1, ... in order. Sizes as constructed.
  void step(int step, std::span<const float> velocity, std::span<float> latents);

 private:
  int order(int step) const;

  ScheduleOptions options_;
  Schedule schedule_;
  std::vector<double> sigmas_;  // the schedule's f32 values
  Tensor m0_, m1_, sample_;     // UniPC, f32: x0 of the last two steps, the sample before the last prediction
};

}  // namespace winnow::dit
