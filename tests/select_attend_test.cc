// Selector and executor together: whatever a selector is given, attention over its plan is what the plan says.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "core/numeric.h"
#include "core/random.h"
#include "winnow/attend.h"
#include "winnow/methods.h"
#include "winnow/metrics.h"
#include "winnow/session.h"
#include "winnow/threads.h"
#include "winnow/workspace.h"

namespace winnow {
namespace {

struct Shape {
  std::int64_t B = 1, Sq = 0, Sk = 0, H = 1, Hk = 1, D = 16;
};

struct Problem {
  Shape shape;
  Tensor q, k, v, out;

  explicit Problem(const Shape& s, DType dtype = DType::f32)
      : shape(s),
        q(dtype, {s.B, s.Sq, s.H, s.D}),
        k(dtype, {s.B, s.Sk, s.Hk, s.D}),
        v(dtype, {s.B, s.Sk, s.Hk, s.D}),
        out(DType::f32, {s.B, s.Sq, s.H, s.D}) {
    fill(q, 1, 3.0F);  // sharp enough for selection to matter
    fill(k, 2, 1.0F);
    fill(v, 3, 1.0F);
  }
  static void fill(const Tensor& t, std::uint64_t seed, float scale) {
    std::vector<float> x(static_cast<std::size_t>(t.numel()));
    fill_normal(x, seed);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (t.view().dtype == DType::f32) {
        t.as<float>()[i] = x[i] * scale;
      } else {
        t.as<bf16>()[i] = to_bf16(x[i] * scale);
      }
    }
  }
  std::vector<float> attend(const TilePlan& plan, Workspace& ws, std::string_view executor = {}) const {
    winnow::attend(plan, q, k, v, out, {.executor = executor}, ws);
    return {out.as<float>(), out.as<float>() + out.numel()};
  }
};

double error_between(const std::vector<float>& a, const std::vector<float>& b) {
  const auto n = static_cast<std::int64_t>(a.size());
  return rel_l2(TensorView(a.data(), DType::f32, {n}), TensorView(b.data(), DType::f32, {n}));
}

// f(options) with every selector in the list of Method, its options changed by `set`.
template <class Set, class F>
void for_each_selector(Set set, F f) {
  const auto visit = [&]<std::size_t... I>(std::index_sequence<I...>) {
    const auto one = [&]<class Options>(Options options) {
      if (!selects_tiles(options) || std::is_same_v<Options, FixedPlan>) return;
      Options::options(options, set);
      f(Method(options));
    };
    (one(std::variant_alternative_t<I, Method>{}), ...);
  };
  visit(std::make_index_sequence<std::variant_size_v<Method>>{});
}

// Queries and keys, not only their positions, which exist only where both are one sequence.
bool looks_at_values(const Method& method) {
  return std::visit(
      []<class Options>(const Options& options) {
        return requires { options.neighbors; };
      },
      method);
}

PlanSpec spec_of(const Shape& shape) {
  PlanSpec spec;
  spec.grid = {shape.Sk, 1, 1};  // one token per frame
  return spec;
}

// Options under which a selector keeps everything, by their keys.
struct KeepEverything {
  bool means = false;
  void operator()(std::string_view key, float& value) const {
    if (key == "cdf") value = 1.0F;
    if (key == "density") value = 0.0F;
    if (key == "sparsity") value = 1e-6F;
    if (key == "tau") value = -1e30F;
    if (key == "frames" || key == "height" || key == "width") value = 1.0F;
  }
  void operator()(std::string_view key, bool& value) const {
    if (key == "means") value = means;
  }
  template <class Other>
  void operator()(std::string_view, Other&) const {}
};

// One assertion for tile indices, ragged tails and the softmax scale.
TEST(SelectAttend, SparsityJustAboveZeroIsDenseBitForBit) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t S : {1, 63, 129, 4033, 4752}) {
      if (dtype == DType::f32 && S > 4000) continue;  // bf16 has the faster executors
      const Problem problem({.Sq = S, .Sk = S}, dtype);
      Workspace ws;
      const TilePlan dense = TilePlan::dense(plan_geometry(problem.q, problem.k, {}), DenseReason::requested);
      const std::vector<float> expected = problem.attend(dense, ws);
      for (const bool means : {false, true}) {
        for_each_selector(KeepEverything{means}, [&](const Method& method) {
          const TilePlan plan = make_plan(problem.q, problem.k, spec_of(problem.shape), method, ws);
          EXPECT_EQ(problem.attend(plan, ws), expected)
              << "S=" << S << " means=" << means << " " << dtype_name(dtype) << " method " << method.index();
        });
      }
    }
  }
}

TEST(SelectAttend, AwkwardShapesMatchTheDefinition) {
  const Shape shapes[] = {
      {.Sq = 129, .Sk = 129, .H = 28, .Hk = 4},  // grouped heads
      {.B = 2, .Sq = 300, .Sk = 300, .H = 2, .Hk = 2, .D = 72},
      {.Sq = 9, .Sk = 1037, .H = 2, .Hk = 2},  // few queries, many keys
      {.Sq = 1037, .Sk = 9, .H = 2, .Hk = 2},
      {.Sq = 4033, .Sk = 257, .D = 8},
  };
  for (const Shape& shape : shapes) {
    const Problem problem(shape);
    for (const bool means : {false, true}) {
      const auto some = [means](std::string_view key, auto& value) {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, bool>) {
          if (key == "means") value = means;
        } else if constexpr (std::is_same_v<Value, float>) {
          if (key == "cdf") value = 0.5F;
        }
      };
      for_each_selector(some, [&](const Method& method) {
        if (shape.Sq != shape.Sk && !looks_at_values(method)) return;
        Workspace ws;
        const TilePlan plan = make_plan(problem.q, problem.k, spec_of(shape), method, ws);
        const auto reference = problem.attend(plan, ws, "reference");
        EXPECT_LT(error_between(problem.attend(plan, ws), reference), 1e-4)
            << problem.q.view().describe() << " means " << means << " method " << method.index();
      });
    }
  }
}

TEST(SelectAttend, KeysPastALengthDoNotMatter) {
  Problem problem({.B = 2, .Sq = 300, .Sk = 300, .H = 2, .Hk = 1});
  PlanSpec spec;
  spec.key_lengths = {300, 130};
  Workspace ws;
  const auto run = [&] {
    const TilePlan plan = select(problem.q, problem.k, spec, MeanPool{.cdf = 0.5F}, ws);
    EXPECT_LT(plan.density(), 1.0);
    return problem.attend(plan, ws);
  };
  const auto before = run();
  for (std::int64_t i = (300 + 130) * 16; i < 600 * 16; ++i) {
    problem.k.as<float>()[i] = 50.0F;
    problem.v.as<float>()[i] = -50.0F;
  }
  EXPECT_EQ(run(), before);
}

TEST(SelectAttend, MoreMassMeansLessErrorAndMeansHelp) {
  const Problem problem({.Sq = 1500, .Sk = 1500, .H = 2, .Hk = 2, .D = 32});
  Workspace ws;
  const auto dense = problem.attend(TilePlan::dense(plan_geometry(problem.q, problem.k, {}), DenseReason::requested), ws);
  double previous = std::numeric_limits<double>::infinity();
  for (const float cdf : {0.2F, 0.5F, 0.8F, 0.95F}) {
    const auto error = [&](bool means) {
      return error_between(problem.attend(select(problem.q, problem.k, {}, Oracle{.cdf = cdf, .means = means}, ws), ws), dense);
    };
    const double dropped = error(false);
    EXPECT_LT(dropped, previous);
    EXPECT_LT(error(true), dropped);
    previous = dropped;
  }
}

TEST(SelectAttend, NonFiniteInputsBehaveAsInDenseAttention) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Problem problem({.Sq = 640, .Sk = 640});
    problem.k.as<float>()[450 * 16 + 3] = bad;
    problem.q.as<float>()[200 * 16 + 3] = bad;
    Workspace ws;
    const auto dense = problem.attend(TilePlan::dense(plan_geometry(problem.q, problem.k, {}), DenseReason::requested), ws);
    const auto sparse = problem.attend(select(problem.q, problem.k, {}, MeanPool{.cdf = 0.1F, .means = false}, ws), ws);
    for (std::size_t i = 0; i < dense.size(); ++i) {
      EXPECT_EQ(std::isnan(sparse[i]), std::isnan(dense[i])) << "row " << i / 16;
    }
  }
}

TEST(SelectAttend, InputsAreNotModified) {
  const Problem problem({.Sq = 200, .Sk = 200});
  const auto copy = [](const Tensor& t) { return std::vector<float>(t.as<float>(), t.as<float>() + t.numel()); };
  const auto q = copy(problem.q);
  const auto k = copy(problem.k);
  const auto v = copy(problem.v);
  Workspace ws;
  problem.attend(select(problem.q, problem.k, {}, MeanPool{.cdf = 0.5F}, ws), ws);
  select(problem.q, problem.k, {}, Oracle{.cdf = 0.5F}, ws);
  EXPECT_EQ(copy(problem.q), q);
  EXPECT_EQ(copy(problem.k), k);
  EXPECT_EQ(copy(problem.v), v);
}

TEST(SelectAttend, StridedViewsEqualContiguousOnes) {
  constexpr std::int64_t S = 260, H = 3, D = 16;
  const Problem problem({.Sq = S, .Sk = S, .H = H, .Hk = H});
  std::vector<float> packed(static_cast<std::size_t>(S * 3 * H * D));  // a fused QKV projection: [S, 3, H, D]
  const Tensor* parts[] = {&problem.q, &problem.k, &problem.v};
  for (std::int64_t s = 0; s < S; ++s)
    for (std::int64_t p = 0; p < 3; ++p)
      for (std::int64_t i = 0; i < H * D; ++i)
        packed[static_cast<std::size_t>((s * 3 + p) * H * D + i)] = parts[p]->as<float>()[s * H * D + i];
  const auto view = [&](std::int64_t p) {
    const std::int64_t shape[] = {1, S, H, D};
    const std::int64_t strides[] = {S * 3 * H * D, 3 * H * D, D, 1};
    return TensorView::strided(packed.data() + p * H * D, DType::f32, shape, strides, 4);
  };
  Workspace ws;
  const auto expected = problem.attend(select(problem.q, problem.k, {}, MeanPool{.cdf = 0.5F}, ws), ws);
  const TilePlan plan = select(view(0), view(1), {}, MeanPool{.cdf = 0.5F}, ws);
  const Tensor out(DType::f32, {1, S, H, D});
  attend(plan, view(0), view(1), view(2), out, {}, ws);
  EXPECT_EQ(std::vector<float>(out.as<float>(), out.as<float>() + out.numel()), expected);
}

TEST(SelectAttend, SessionsAreTheSameForAnyNumberOfThreads) {
  const Problem problem({.Sq = 900, .Sk = 900, .H = 4, .Hk = 2});
  AttentionSession session(parse_attention_config(R"({"method":"mean_pool","cdf":0.6})"));
  Workspace ws;
  const auto run = [&](int threads) {
    set_num_threads(threads);
    session.attend({}, problem.q, problem.k, problem.v, problem.out, ws);
    return std::vector<float>(problem.out.as<float>(), problem.out.as<float>() + problem.out.numel());
  };
  const auto one = run(1);
  EXPECT_EQ(run(2), one);
  EXPECT_EQ(run(5), one);
  set_num_threads(0);
}

}  // namespace
}  // namespace winnow
