#include "dit/scheduler.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/text.h"
#include "core/threads.h"
#include "winnow/error.h"

namespace winnow::dit {

namespace {

double shifted(double shift, double x) { return shift * x / (1.0 + (shift - 1.0) * x); }

// i-th of n equidistant points from a to b.
double linspace(double a, double b, int n, int i) { return n == 1 ? a : a + (b - a) * i / (n - 1); }

Schedule euler_schedule(const ScheduleOptions& o) {
  const auto train = static_cast<double>(o.num_train_timesteps);
  Schedule schedule;
  double high = 1.0;
  double low = 1.0 / train;
  if (o.euler_double_shift) {  // the constructor has shifted both ends before set_timesteps shifts the points between them
    high = static_cast<double>(static_cast<float>(shifted(o.shift, high)));
    low = static_cast<double>(static_cast<float>(shifted(o.shift, low)));
  }
  for (int i = 0; i < o.steps; ++i) {
    const auto sigma = static_cast<float>(shifted(o.shift, linspace(high, low, o.steps, i)));
    schedule.sigmas.push_back(sigma);
    schedule.timesteps.push_back(static_cast<double>(sigma * static_cast<float>(train)));
  }
  schedule.sigmas.push_back(0.0F);
  return schedule;
}

Schedule unipc_schedule(const ScheduleOptions& o) {
  const auto train = static_cast<double>(o.num_train_timesteps);
  const bool wan = o.sigma_mode == SigmaMode::wan;
  Schedule schedule;
  for (int i = 0; i < o.steps; ++i) {
    const double x = wan ? linspace(1.0 - 1.0 / train, 0.0, o.steps + 1, i) : linspace(1.0, 1.0 / train, o.steps + 1, i);
    double sigma = shifted(o.shift, x);
    if (!wan && i == 0 && std::abs(sigma - 1.0) < 1e-6) sigma -= 1e-6;  // ln(1 - sigma) has to be finite
    schedule.sigmas.push_back(static_cast<float>(sigma));
    schedule.timesteps.push_back(std::trunc(sigma * train));
  }
  schedule.sigmas.push_back(0.0F);
  return schedule;
}

double sigma_at(std::span<const double> sigmas, int i) { return sigmas[static_cast<std::size_t>(i)]; }
// ln(alpha / sigma) with alpha = 1 - sigma; +inf at sigma = 0.
double lambda(std::span<const double> sigmas, int i) { return std::log1p(-sigma_at(sigmas, i)) - std::log(sigma_at(sigmas, i)); }

constexpr std::int64_t kBlock = 1 << 14;  // elements per task: 64 KB of each array

}  // namespace

Schedule make_schedule(const ScheduleOptions& options) {
  if (options.steps < 1) throw Error("schedule", "steps: expected at least 1, got " + std::to_string(options.steps));
  if (!(options.shift > 0.0) || !std::isfinite(options.shift)) {
    throw Error("schedule", "flow_shift: expected a positive number, got " + short_number(options.shift));
  }
  return options.solver == Solver::euler ? euler_schedule(options) : unipc_schedule(options);
}

int high_noise_steps(const Schedule& schedule, double boundary) {
  return static_cast<int>(std::count_if(schedule.timesteps.begin(), schedule.timesteps.end(), [&](double t) { return t >= boundary; }));
}

// x' = (sigma' / sigma) x - alpha' B (m0 + difference-terms), B = expm1(-h), h = lambda' - lambda.
// Predictor from step i to i+1: m0 = x0_i, D = (x0_{i-1} - x0_i) / r, r = (lambda_{i-1} - lambda_i) / h, weight 1/2.
UniPCCoefficients unipc_predictor(std::span<const double> sigmas, int step, int order) {
  UniPCCoefficients c;
  c.order = order;
  const double next = sigma_at(sigmas, step + 1);
  if (next == 0.0) {  // h = inf, B = -1: what remains is x0 (only reached with order 1 or lower_order_final off)
    c.B = -1.0;
    c.x0 = 1.0;
    return c;
  }
  c.h = lambda(sigmas, step + 1) - lambda(sigmas, step);
  c.B = std::expm1(-c.h);
  const double scale = -(1.0 - next) * c.B;
  c.sigma_ratio = next / sigma_at(sigmas, step);
  c.x0 = scale;
  if (order == 2) {
    c.r = (lambda(sigmas, step - 1) - lambda(sigmas, step)) / c.h;
    c.rho1 = 0.5;
    c.difference = scale * c.rho1 / c.r;
  }
  return c;
}

// Corrector at step i, from step a = i-1: m0 = x0_a, D = (x0_{a-1} - m0) / r, plus (x0_i - m0).
//   order 1: rho2 = 1/2     order 2: rho solves [1 1; r 1] rho = b with b from the phi functions of -h
UniPCCoefficients unipc_corrector(std::span<const double> sigmas, int step, int order) {
  UniPCCoefficients c;
  c.order = order;
  c.h = lambda(sigmas, step) - lambda(sigmas, step - 1);
  c.B = std::expm1(-c.h);
  const double scale = -(1.0 - sigma_at(sigmas, step)) * c.B;
  c.sigma_ratio = sigma_at(sigmas, step) / sigma_at(sigmas, step - 1);
  c.x0 = scale;
  c.rho2 = 0.5;
  if (order == 2) {
    c.r = (lambda(sigmas, step - 2) - lambda(sigmas, step - 1)) / c.h;
    const double phi2 = c.B / -c.h - 1.0;
    const double phi3 = phi2 / -c.h - 0.5;
    const double b1 = phi2 / c.B;
    const double b2 = 2.0 * phi3 / c.B;
    c.rho1 = (b1 - b2) / (1.0 - c.r);
    c.rho2 = b1 - c.rho1;
    c.difference = scale * c.rho1 / c.r;
  }
  c.current = scale * c.rho2;
  return c;
}

Sampler::Sampler(const ScheduleOptions& options, std::size_t elements)
    : options_(options), schedule_(make_schedule(options)), sigmas_(schedule_.sigmas.begin(), schedule_.sigmas.end()) {
  if (options.solver == Solver::unipc) {
    const auto n = static_cast<std::int64_t>(elements);
    m0_ = Tensor(DType::f32, {n});
    sample_ = Tensor(DType::f32, {n});
    if (options.solver_order == 2) m1_ = Tensor(DType::f32, {n});
  }
}

int Sampler::order(int step) const {
  int order = std::min(options_.solver_order, step + 1);  // warm-up
  if (options_.lower_order_final) order = std::min(order, options_.steps - step);
  return order;
}

void Sampler::step(int step, std::span<const float> velocity, std::span<float> latents) {
  const std::span<const float> sigmas = schedule_.sigmas;
  const auto n = static_cast<std::int64_t>(latents.size());
  const std::int64_t blocks = (n + kBlock - 1) / kBlock;
  const float* v = velocity.data();
  float* x = latents.data();
  if (options_.solver == Solver::euler) {
    const float delta = sigmas[static_cast<std::size_t>(step) + 1] - sigmas[static_cast<std::size_t>(step)];
    return parallel_for(blocks, [&](std::int64_t block, int) {
      const std::int64_t end = std::min(n, (block + 1) * kBlock);
      for (std::int64_t i = block * kBlock; i < end; ++i) x[i] += delta * v[i];
    });
  }

  const UniPCCoefficients p = unipc_predictor(sigmas_, step, order(step));
  UniPCCoefficients c;
  if (step > 0) c = unipc_corrector(sigmas_, step, order(step - 1));
  const bool correct = step > 0;
  const auto as_float = [](double value) { return static_cast<float>(value); };
  const float sigma = sigmas[static_cast<std::size_t>(step)];
  const float c_ratio = as_float(c.sigma_ratio);
  const float c_x0 = as_float(c.x0);
  const float c_diff = as_float(c.difference);
  const float c_now = as_float(c.current);
  const float p_ratio = as_float(p.sigma_ratio);
  const float p_x0 = as_float(p.x0);
  const float p_diff = as_float(p.difference);
  const bool c_two = correct && c.order == 2;
  const bool p_two = p.order == 2 && p.difference != 0.0;
  const bool keep = options_.solver_order == 2;
  auto* m0 = m0_.as<float>();
  auto* m1 = m1_.as<float>();
  auto* sample = sample_.as<float>();
  parallel_for(blocks, [&](std::int64_t block, int) {
    const std::int64_t end = std::min(n, (block + 1) * kBlock);
    for (std::int64_t i = block * kBlock; i < end; ++i) {
      const float now = x[i] - sigma * v[i];  // x0 of the uncorrected sample
      float s = x[i];
      if (correct) {
        s = c_ratio * sample[i] + c_x0 * m0[i] + c_now * (now - m0[i]);
        if (c_two) s += c_diff * (m1[i] - m0[i]);
      }
      float next = p_ratio * s + p_x0 * now;
      if (p_two) next += p_diff * (m0[i] - now);
      if (keep) m1[i] = m0[i];
      m0[i] = now;
      sample[i] = s;
      x[i] = next;
    }
  });
}

}  // namespace winnow::dit
