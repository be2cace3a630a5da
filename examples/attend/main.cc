// Winnow as a library: choose key tiles, run them, look at what that cost and changed.
#include <cmath>
#include <cstdio>
#include <random>

#include "winnow/attend.h"
#include "winnow/error.h"
#include "winnow/metrics.h"
#include "winnow/select/mean_pool.h"
#include "winnow/tensor.h"
#include "winnow/workspace.h"

int main() {
  using namespace winnow;
  try {
    const std::int64_t S = 2000, H = 2, D = 64;
    Tensor q(DType::f32, {1, S, H, D}), k(DType::f32, {1, S, H, D}), v(DType::f32, {1, S, H, D});
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    // Keys and queries that drift along the sequence, so that near tokens attend to each other.
    for (std::int64_t s = 0; s < S; ++s) {
      for (std::int64_t i = 0; i < H * D; ++i) {
        const auto wave = static_cast<float>(3.0 * std::sin(0.002 * static_cast<double>(s * (1 + i % 7)) + static_cast<double>(i)));
        q.as<float>()[s * H * D + i] = wave + normal(random);
        k.as<float>()[s * H * D + i] = wave + normal(random);
        v.as<float>()[s * H * D + i] = normal(random);
      }
    }
    Workspace ws;
    Tensor sparse(DType::f32, {1, S, H, D}), dense(DType::f32, {1, S, H, D});

    const TilePlan plan = select(q, k, PlanSpec{}, MeanPool{.cdf = 0.9F}, ws);
    const AttendResult result = attend(plan, q, k, v, sparse, {}, ws);
    attend(TilePlan::dense(plan.geometry(), DenseReason::requested), q, k, v, dense, {}, ws);

    std::printf("executor %s, density %.3f, relative L2 error %.4f\n", result.executor, plan.density(), rel_l2(sparse, dense));
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
