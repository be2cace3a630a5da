// What every selector promises, whatever it measures. Runs over the selectors in the list of Method.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

#include "select/select_testing.h"
#include "winnow/error.h"
#include "winnow/methods.h"
#include "winnow/threads.h"
#include "winnow/workspace.h"

namespace winnow {
namespace {

using testing_select::at;
using testing_select::heads_first;
using testing_select::Problem;
using testing_select::set_option;
using testing_select::tokens_first;

template <class Options>
concept Selector = requires(const TensorView& x, const PlanSpec& spec, const Options& options, Workspace& ws) {
  { select(x, x, spec, options, ws) } -> std::same_as<TilePlan>;
};

template <class... Found>
struct List {
  using Types = testing::Types<Found...>;
};
template <class Found, class... Rest>
struct Selectors;
template <class... Found>
struct Selectors<List<Found...>> : List<Found...> {};
template <class... Found, class First, class... Rest>
struct Selectors<List<Found...>, First, Rest...>
    : Selectors<std::conditional_t<Selector<First>, List<Found..., First>, List<Found...>>, Rest...> {};
template <class... All>
Selectors<List<>, All...> selectors_of(const std::variant<All...>*);
using AllSelectors = decltype(selectors_of(static_cast<Method*>(nullptr)))::Types;

template <class Options>
bool is_valid(const Options& options) {
  try {
    options.validate();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// The defaults, where they are complete.
template <class Options>
Options usable() {
  Options options;
  if (!is_valid(options)) set_option(options, "density", 0.25F);
  set_option(options, "theta", -0.1F);  // random data is never coherent
  return options;
}

template <class Options>
Options keeping_everything() {
  Options options = usable<Options>();
  set_option(options, "density", 0.0F);
  set_option(options, "cdf", 1.0F);
  set_option(options, "sparsity", 1e-6F);
  set_option(options, "tau", -1e30F);
  for (const char* share : {"frames", "height", "width"}) set_option(options, share, 1.0F);
  return options;
}

// Of one token per frame.
PlanSpec spec_of(const Problem& p) {
  PlanSpec spec;
  spec.grid = {p.k.view().size(1), 1, 1};
  return spec;
}

// Looks at queries and keys, not only at their positions, which exist only where both are one sequence.
template <class Options>
constexpr bool kLooksAtValues = requires(Options options) {
  options.neighbors;
};
template <class Options>
bool takes(const Problem& p) {
  return kLooksAtValues<Options> || p.q.view().size(1) == p.k.view().size(1);
}

template <class Options>
class SelectorContract : public testing::Test {};
struct Names {
  template <class Options>
  static std::string GetName(int) {
    return Options::kName;
  }
};
TYPED_TEST_SUITE(SelectorContract, AllSelectors, Names);

// SpargeAttn#77, #59, #56, #98 (ragged lengths, fewer than 128 queries, small head dims, grouped heads were refused) and
// vllm-omni#5865 (cross-attention lost most of its queries).
TYPED_TEST(SelectorContract, EveryLengthHasAPlanWithoutEmptyRows) {
  const Problem problems[] = {{1, 1, 1, 1, 1, 16},      {1, 63, 63, 2, 1, 16},  {1, 129, 129, 28, 4, 16}, {2, 4033, 4033, 1, 1, 8},
                              {1, 4752, 4752, 1, 1, 8}, {1, 9, 4033, 2, 2, 16}, {2, 640, 65, 2, 2, 72},   {1, 200, 200, 1, 1, 1}};
  for (const Problem& p : problems) {
    Workspace ws;
    if (!takes<TypeParam>(p)) {
      EXPECT_THROW(select(p.q, p.k, spec_of(p), usable<TypeParam>(), ws), Error);
      continue;
    }
    const TilePlan plan = select(p.q, p.k, spec_of(p), usable<TypeParam>(), ws);
    plan.validate();
    for (std::int64_t row = 0; row < plan.geometry().rows(); ++row) {
      ASSERT_FALSE(plan.tiles(Tier::refine, row).empty()) << p.q.view().describe() << " row " << row;
    }
  }
}

TYPED_TEST(SelectorContract, KeepingEverythingIsDense) {
  for (const std::int64_t S : {1, 63, 129, 4033, 4752}) {
    const Problem p(1, S, S, 1, 1, 8);
    Workspace ws;
    EXPECT_EQ(select(p.q, p.k, spec_of(p), keeping_everything<TypeParam>(), ws).density(), 1.0) << S;
  }
}

TYPED_TEST(SelectorContract, EmptyInputs) {
  for (const Problem& p : {Problem(0, 9, 9, 2, 1, 8), Problem(1, 0, 9, 2, 1, 8), Problem(1, 9, 0, 2, 1, 8), Problem(2, 9, 9, 0, 1, 8)}) {
    if (!takes<TypeParam>(p)) continue;
    Workspace ws;
    const TilePlan plan = select(p.q, p.k, spec_of(p), usable<TypeParam>(), ws);
    EXPECT_FALSE(plan.has_tier(Tier::refine)) << p.q.view().describe() << p.k.view().describe();
  }
}

TYPED_TEST(SelectorContract, PaddingTakesNoPart) {
  Problem p(3, 700, 700, 2, 1, 16);
  PlanSpec spec = spec_of(p);
  spec.key_lengths = {700, 130, 0};
  Workspace ws;
  const TilePlan plan = select(p.q, p.k, spec, usable<TypeParam>(), ws);
  for (std::int64_t s = 130; s < 700; ++s) std::fill_n(p.k.as<float>() + (700 + s) * 16, 16, std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(plan == select(p.q, p.k, spec, usable<TypeParam>(), ws));
}

TYPED_TEST(SelectorContract, TheSamePlanForAnyNumberOfThreads) {
  const Problem p(2, 900, 900, 4, 2, 32);
  Workspace ws;
  set_num_threads(1);
  const TilePlan one = select(p.q, p.k, spec_of(p), usable<TypeParam>(), ws);
  for (const int threads : {2, 5}) {
    set_num_threads(threads);
    EXPECT_TRUE(one == select(p.q, p.k, spec_of(p), usable<TypeParam>(), ws)) << threads;
  }
  set_num_threads(0);
}

TYPED_TEST(SelectorContract, StridedViewsEqualContiguousOnes) {
  const Problem p(2, 300, 300, 3, 3, 16);
  const Tensor q = heads_first(p.q);
  const Tensor k = heads_first(p.k);
  Workspace ws;
  EXPECT_TRUE(select(p.q, p.k, spec_of(p), usable<TypeParam>(), ws) ==
              select(tokens_first(q), tokens_first(k), spec_of(p), usable<TypeParam>(), ws));
}

TYPED_TEST(SelectorContract, NonFiniteInputsGiveAPlan) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max()}) {
    Problem p(1, 1280, 1280, 1, 1, 16);
    p.k.as<float>()[450 * 16 + 3] = bad;
    p.q.as<float>()[200 * 16 + 3] = bad;
    Workspace ws;
    const TilePlan plan = select(p.q, p.k, spec_of(p), usable<TypeParam>(), ws);
    plan.validate();
    EXPECT_TRUE(plan == select(p.q, p.k, spec_of(p), usable<TypeParam>(), ws));
    if constexpr (kLooksAtValues<TypeParam>) {  // what it knows nothing about is kept
      if (std::isfinite(bad)) continue;
      for (std::int64_t row = 0; row < 10; ++row) EXPECT_THAT(plan.tiles(Tier::refine, row), testing::Contains(450 / 64)) << row;
      EXPECT_EQ(plan.tiles(Tier::refine, 1).size(), 20U);
      if constexpr (!std::is_same_v<TypeParam, Oracle>) {  // its softmax sees every key
        EXPECT_LT(plan.tiles(Tier::refine, 9).size(), 20U);
      }
    }
  }
}

TYPED_TEST(SelectorContract, ARepeatedCallTakesNothingFromTheSystem) {
  const Problem p(1, 900, 900, 4, 2, 32);
  Workspace ws;
  const auto run = [&] {
    const Workspace::Scope scope(ws);
    select(p.q, p.k, spec_of(p), usable<TypeParam>(), ws);
  };
  run();
  ws.reset();
  run();
  const std::size_t before = ws.system_allocations();
  run();
  EXPECT_EQ(ws.system_allocations(), before);
}

// sageattn3 changed its caller's K: the second call with it saw another one.
TYPED_TEST(SelectorContract, TwoCallsWithTheSameKeysSeeTheSameKeys) {
  const Problem p(1, 300, 300, 2, 1, 16);
  const auto copy = [](const Tensor& t) { return std::vector<float>(t.as<float>(), t.as<float>() + t.numel()); };
  const auto q = copy(p.q);
  const auto k = copy(p.k);
  Workspace ws;
  const TilePlan plan = select(p.q, p.k, spec_of(p), usable<TypeParam>(), ws);
  EXPECT_EQ(copy(p.q), q);
  EXPECT_EQ(copy(p.k), k);
  EXPECT_TRUE(plan == select(p.q, p.k, spec_of(p), usable<TypeParam>(), ws));
}

// flashinfer#1367: 49152 tokens of 48 heads were too many row blocks for a fixed buffer.
TYPED_TEST(SelectorContract, MoreThan32768TokensInManyHeads) {
  const std::int64_t S = std::is_same_v<TypeParam, Oracle> ? 2048 : 49152;  // the oracle's time is quadratic by definition
  const Problem p(1, S, S, 48, 1, 1);
  Workspace ws;
  const TilePlan plan = select(p.q, p.k, spec_of(p), usable<TypeParam>(), ws);
  EXPECT_EQ(plan.geometry().rows(), 48 * S / 128);
  EXPECT_FALSE(plan.tiles(Tier::refine, plan.geometry().rows() - 1).empty());
}

TYPED_TEST(SelectorContract, WrongInputsAreErrors) {
  const Problem p(1, 100, 100, 3, 3, 16);
  const Tensor k(DType::f32, {1, 100, 2, 16});
  Workspace ws;
  EXPECT_THROW(select(p.q, k, {}, usable<TypeParam>(), ws), Error);
}

}  // namespace
}  // namespace winnow
