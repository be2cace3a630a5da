// The step cache on a model of two blocks: what it reuses, what it never does, and faults that users of other caches met.
#include "steps/step_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/numeric.h"
#include "steps/step_cache_testing.h"
#include "winnow/error.h"
#include "winnow/threads.h"

namespace winnow {
namespace {

using steps_testing::first_block;
using steps_testing::Model;
using steps_testing::schedule;
using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// "sglang#33827: the cache never hits, its residual is 0/0": a block that changes its input in place.
TEST(StepCache, BlocksThatWorkInPlaceStillHit) {
  StepCache cache(first_block());
  cache.begin_request(0, schedule(5, 0));
  Model model;
  EXPECT_EQ(model.run(cache, 0).reason, CacheReason::first_step);
  model.input = 7.0F;  // another input: what the first block adds counts, not what it is given
  model.rest = 99.0F;  // not run
  const Model::Result second = model.run(cache, 1);
  EXPECT_EQ(second.reason, CacheReason::reused);
  EXPECT_EQ(second.x, 7.0F + 1.0F + 10.0F);  // this step's first block, the first step's rest
  EXPECT_EQ(model.blocks_run, 3);
  EXPECT_EQ(cache.totals().reused(), 1);
}

TEST(StepCache, ThresholdComparesWithTheLastComputedForward) {
  StepCache cache(first_block(0.1F));
  cache.begin_request(0, schedule(9, 0));
  Model model;
  EXPECT_EQ(model.run(cache, 0).reason, CacheReason::first_step);
  model.first = 1.06F;
  EXPECT_EQ(model.run(cache, 1).reason, CacheReason::reused);
  model.first = 1.12F;  // 6 % from the last forward, 12 % from the last computed one
  EXPECT_EQ(model.run(cache, 2).reason, CacheReason::changed);
  model.first = 1.06F;  // 6 % from that
  EXPECT_EQ(model.run(cache, 3).reason, CacheReason::reused);
}

TEST(StepCache, AccumulationAddsUpChangesThatCancel) {
  StepCacheConfig config = first_block(0.1F);
  std::get<FirstBlockCache>(config.method).accumulate = true;
  StepCache cache(config);
  cache.begin_request(0, schedule(9, 0));
  Model model;
  model.run(cache, 0);
  model.first = 1.06F;
  EXPECT_EQ(model.run(cache, 1).reason, CacheReason::reused);
  model.first = 1.0F;  // back where it was, but 6 % + 5.7 % on the way
  EXPECT_EQ(model.run(cache, 2).reason, CacheReason::changed);
}

TEST(StepCache, EachExpertHasItsThreshold) {
  StepCache cache(first_block(0.05F, 0.2F));
  cache.begin_request(0, schedule(4, 4));
  Model model;
  model.run(cache, 0);
  model.first = 1.1F;
  EXPECT_EQ(model.run(cache, 1).reason, CacheReason::changed);
  model.run(cache, 2);
  model.run(cache, 3);
  model.run(cache, 4);
  model.first = 1.21F;
  EXPECT_EQ(model.run(cache, 5).reason, CacheReason::reused);
  EXPECT_EQ(cache.totals().experts[0].forwards(), 4);
  EXPECT_EQ(cache.totals().experts[1].reused(), 1);
}

TEST(StepCache, FirstAndLastStepOfEachExpertAreComputed) {
  for (const auto& experts : {schedule(4, 5), schedule(7, 0), schedule(1, 6), schedule(0, 5), schedule(3, 1), schedule(2, 2)}) {
    StepCache cache(first_block(1e6F, 1e6F));
    cache.begin_request(0, experts);
    Model model;
    const std::vector<CachePlace> places = cache_places(experts);
    for (const CachePlace& place : places) {
      const CacheReason expected = place.last() ? CacheReason::last_step : place.index == 0 ? CacheReason::first_step : CacheReason::reused;
      EXPECT_EQ(model.run(cache, place.step).reason, expected) << place.step;
    }
  }
}

// "kijai/ComfyUI-KJNodes#371: Wan 2.2 never resets and skips every step": a barrier at the switch, wherever the schedule puts it.
TEST(StepCache, NothingCrossesTheExpertSwitch) {
  for (int high = 1; high < 8; ++high) {
    StepCache cache(first_block(1e6F, 1e6F));
    cache.begin_request(0, schedule(high, 9 - high));
    Model model;
    for (int step = 0; step < 9; ++step) {
      const bool low = step >= high;
      model.rest = low ? 2000.0F : 1000.0F;
      EXPECT_EQ(model.run(cache, step).x, low ? 2002.0F : 1002.0F) << high << " " << step;
    }
  }
}

TEST(StepCache, BuffersOfTheLeftExpertAreFreedAtTheBarrier) {
  StepCache cache(first_block());
  cache.begin_request(0, schedule(4, 4));
  Model model;
  const auto both = [&](int step) {
    model.run(cache, step);
    model.run(cache, step, 0, Branch::unconditional);
  };
  both(0);
  const std::size_t bytes = cache.bytes();
  EXPECT_EQ(bytes, StepCache::bytes_needed(cache.config(), model.tokens, model.width, model.dtype, 2));
  for (int step = 1; step < 8; ++step) {
    both(step);
    EXPECT_EQ(cache.bytes(), bytes) << step;
  }
  EXPECT_EQ(cache.totals().peak_bytes, bytes);
  cache.end_request(0);
  EXPECT_EQ(cache.bytes(), 0U);

  cache.begin_request(1, schedule(4, 4));  // no unconditional branch in the low-noise expert: half of it goes
  for (int step = 0; step < 4; ++step) {
    model.run(cache, step, 1);
    model.run(cache, step, 1, Branch::unconditional);
  }
  for (int step = 4; step < 6; ++step) model.run(cache, step, 1);
  EXPECT_EQ(cache.bytes(), bytes / 2);
}

// "sglang#17140: shape mismatch" and "welltop-cn/ComfyUI-TeaCache#7, #8, #15: the size of tensor a must match b".
TEST(StepCache, RequestsOfOtherSizesStartAnew) {
  StepCache cache(first_block(1e6F));
  Model model;
  cache.begin_request(0, schedule(20, 0));
  for (int step = 0; step < 10; ++step) model.run(cache, step);
  model.tokens = 12;  // upscaled in the middle of the same request
  model.rest = 20.0F;
  EXPECT_EQ(model.run(cache, 10).reason, CacheReason::no_reference);
  EXPECT_EQ(model.run(cache, 11).reason, CacheReason::reused);
  cache.begin_request(0, schedule(8, 0));  // the same number again, 8 steps
  model.tokens = 7;
  model.rest = 30.0F;
  EXPECT_EQ(model.run(cache, 0).reason, CacheReason::first_step);
  EXPECT_EQ(model.run(cache, 1).x, 32.0F);
}

// "vllm-omni#2240: crash after a warm-up of another shape".
TEST(StepCache, AWarmUpOfAnotherShapeIsForgotten) {
  StepCache cache(first_block(1e6F));
  Model small;
  Model large;
  large.tokens = 1000;
  cache.begin_request(0, schedule(4, 0));
  small.run(cache, 0);
  cache.end_request(0);
  cache.begin_request(1, schedule(4, 0));
  EXPECT_EQ(large.run(cache, 0, 1).reason, CacheReason::first_step);
  EXPECT_EQ(large.run(cache, 1, 1).reason, CacheReason::reused);
}

// Two grids with equally many tokens, and two dtypes, are different shapes.
TEST(StepCache, GridAndDtypeBelongToTheKey) {
  StepCache cache(first_block(1e6F));
  cache.begin_request(0, schedule(9, 0));
  const auto reason = [&](int step, const Grid& grid, DType dtype) {
    Workspace ws;
    const Tensor x(dtype, {12, 4});
    CachedForward forward = cache.forward(0, step, Branch::conditional, grid);
    forward.before_blocks(x, {}, {}, ws);
    for (int i = 0; i < 48; ++i) {
      if (dtype == DType::f32) x.as<float>()[i] += 1.0F;
      if (dtype == DType::f16) x.as<f16>()[i] = to_f16(1.0F);
    }
    if (!forward.after_first_block(x)) forward.after_blocks(x);
    return forward.reason();
  };
  reason(0, {1, 3, 4}, DType::f32);
  EXPECT_EQ(reason(1, {1, 3, 4}, DType::f32), CacheReason::reused);
  EXPECT_EQ(reason(2, {1, 4, 3}, DType::f32), CacheReason::no_reference);
  EXPECT_EQ(reason(3, {1, 4, 3}, DType::f16), CacheReason::no_reference);
  EXPECT_EQ(reason(4, {1, 4, 3}, DType::f16), CacheReason::reused);
}

// "vllm-omni#1392: None has no blocks": a model with one transformer.
TEST(StepCache, OneExpertUsesTheHighThreshold) {
  StepCache cache(first_block(0.2F, 0.0F));
  cache.begin_request(0, schedule(6, 0));
  Model model;
  model.run(cache, 0);
  model.first = 1.1F;
  for (int step = 1; step < 5; ++step) EXPECT_EQ(model.run(cache, step).reason, CacheReason::reused);
  EXPECT_EQ(model.run(cache, 5).reason, CacheReason::last_step);
}

// "kijai/ComfyUI-KJNodes#371: second generation": the same request number, begun again or not.
TEST(StepCache, ASecondGenerationStartsAnew) {
  StepCache cache(first_block(1e6F));
  cache.begin_request(0, schedule(5, 0));
  Model model;
  for (int step = 0; step < 5; ++step) model.run(cache, step);
  model.rest = 20.0F;
  EXPECT_EQ(model.run(cache, 0).x, 22.0F);  // a host that forgot begin_request()
  EXPECT_EQ(model.run(cache, 1).x, 22.0F);
  model.rest = 30.0F;
  cache.begin_request(0, schedule(5, 0));
  EXPECT_EQ(model.run(cache, 1).reason, CacheReason::no_reference);
}

// "kijai/ComfyUI-KJNodes#242: noise with two GPUs": workers share no state, and decide by the sums over all of them.
TEST(StepCache, WorkersOfOneSampleDecideAlike) {
  std::vector<CacheSums> seen;
  CacheSums other;  // what the other worker's half adds
  const auto agree = [&](const CacheSums& own) {
    seen.push_back(own);
    return CacheSums{own.change + other.change, own.reference + other.reference};
  };
  StepCache cache(first_block(0.1F), {}, agree);
  StepCache alone(first_block(0.1F));
  for (StepCache* c : {&cache, &alone}) c->begin_request(0, schedule(5, 0));
  Model model;
  for (StepCache* c : {&cache, &alone}) model.run(*c, 0);
  other = {6.0, 15.0};  // 40 % change: together (0 + 6) / (15 + 15) = 20 %
  EXPECT_EQ(model.run(cache, 1).reason, CacheReason::changed);
  EXPECT_EQ(model.run(alone, 1).reason, CacheReason::reused);
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_EQ(seen[0].reference, 15.0);
}

// "ali-vilab/TeaCache#57 and welltop-cn/ComfyUI-TeaCache#182: threshold 0 means off".
TEST(StepCache, ThresholdZeroIsOffAndTakesNoMemory) {
  StepCache cache(first_block(0.0F, 0.5F));
  cache.begin_request(0, schedule(4, 4));
  Model model;
  for (int step = 0; step < 4; ++step) {
    EXPECT_EQ(model.run(cache, step).reason, CacheReason::disabled);
    EXPECT_EQ(cache.bytes(), 0U);
  }
  model.run(cache, 4);
  EXPECT_EQ(model.run(cache, 5).reason, CacheReason::reused);
}

// "diffusers#14037: no context is set": switched on and off in the middle of a run.
TEST(StepCache, TurnedOnAndOffAtAnyStep) {
  StepCache cache(first_block(1e6F));
  cache.begin_request(0, schedule(20, 0));
  Model model;
  EXPECT_EQ(model.run(cache, 5).reason, CacheReason::no_reference);  // on from step 5
  EXPECT_EQ(model.run(cache, 6).reason, CacheReason::reused);
  model.rest = 50.0F;
  EXPECT_EQ(model.run(cache, 9).reason, CacheReason::no_reference);  // off for two steps
  EXPECT_EQ(model.run(cache, 10).x, 52.0F);
}

// "diffusers FirstBlockCache reuses where the signal is NaN".
TEST(StepCache, ANaNNeverReusesAndIsCounted) {
  int warnings = 0;
  StepCache cache(first_block(1e6F), [&](const Diagnostic& d) { warnings += std::string(d.code) == "cache.non_finite" ? 1 : 0; });
  cache.begin_request(0, schedule(9, 0));
  Model model;
  model.run(cache, 0);
  model.first = kNan;
  EXPECT_EQ(model.run(cache, 1).reason, CacheReason::non_finite);
  model.first = 1.0F;  // what step 1 left is not taken either
  EXPECT_EQ(model.run(cache, 2).reason, CacheReason::no_reference);
  EXPECT_EQ(model.run(cache, 3).reason, CacheReason::reused);
  model.first = std::numeric_limits<float>::infinity();
  EXPECT_EQ(model.run(cache, 4).reason, CacheReason::non_finite);
  EXPECT_EQ(cache.totals().count(CacheReason::non_finite), 2);
  EXPECT_EQ(warnings, 1);
}

TEST(StepCache, ANonFiniteRestIsNotStored) {
  StepCache cache(first_block(1e6F));
  cache.begin_request(0, schedule(9, 0));
  Model model;
  model.rest = kNan;
  model.run(cache, 0);
  model.rest = 10.0F;
  const Model::Result second = model.run(cache, 1);
  EXPECT_EQ(second.reason, CacheReason::no_reference);
  EXPECT_EQ(second.x, 12.0F);
}

// "diffusers FirstBlockCache: a previous residual of zero reuses": 0/0 and 1/0 are no small change.
TEST(StepCache, AFirstBlockThatAddsNothingNeverReuses) {
  StepCache cache(first_block(1e6F));
  cache.begin_request(0, schedule(9, 0));
  Model model;
  model.first = 0.0F;
  model.run(cache, 0);
  EXPECT_EQ(model.run(cache, 1).reason, CacheReason::non_finite);
  model.first = 1.0F;
  EXPECT_EQ(model.run(cache, 2).reason, CacheReason::non_finite);
  EXPECT_EQ(model.run(cache, 3).reason, CacheReason::reused);
}

TEST(StepCache, AStepThatThrowsLeavesNothingToReuse) {
  for (const int block : {0, 1}) {
    StepCache cache(first_block(1e6F));
    cache.begin_request(0, schedule(9, 0));
    Model model;
    model.run(cache, 0);
    EXPECT_EQ(model.run(cache, 1).reason, CacheReason::reused);
    model.run(cache, 2, 0, Branch::unconditional);
    model.throws_in_block = block;
    model.first = block == 0 ? 1.0F : 1e9F;  // computes, so that the second block runs
    EXPECT_THROW(model.run(cache, 2), Error);
    model.throws_in_block.reset();
    model.first = 1.0F;
    model.rest = 77.0F;
    EXPECT_EQ(model.run(cache, 2).x, 79.0F);  // the host tries again
    EXPECT_THROW((model.throws_in_block = 0, model.run(cache, 3)), Error);
    model.throws_in_block.reset();
    EXPECT_EQ(model.run(cache, 4).x, 79.0F);  // or goes on
    EXPECT_EQ(model.run(cache, 5).reason, CacheReason::reused);
  }
}

TEST(StepCache, GuidanceSwitchedOffAndOnAgain) {
  StepCache cache(first_block(1e6F));
  cache.begin_request(0, schedule(12, 0));
  Model model;
  for (int step = 0; step < 4; ++step) {
    model.rest = 10.0F;
    model.run(cache, step);
    model.rest = 20.0F;
    EXPECT_EQ(model.run(cache, step, 0, Branch::unconditional).x, 22.0F);  // never the other branch's
  }
  const std::size_t both = cache.bytes();
  for (int step = 4; step < 7; ++step) EXPECT_EQ(model.run(cache, step).x, 12.0F);
  EXPECT_EQ(cache.bytes(), both / 2);
  model.rest = 30.0F;
  const Model::Result again = model.run(cache, 7, 0, Branch::unconditional);
  EXPECT_EQ(again.reason, CacheReason::no_reference);
  EXPECT_EQ(again.x, 32.0F);
}

TEST(StepCache, TheUnconditionalBranchDoesWhatTheConditionalOneDid) {
  for (const bool follow : {true, false}) {
    StepCacheConfig config = first_block(0.1F);
    std::get<FirstBlockCache>(config.method).follow_conditional = follow;
    StepCache cache(config);
    cache.begin_request(0, schedule(12, 0));
    Model conditional;
    Model unconditional;
    const auto step = [&](int at, float first, float other) {
      conditional.first = first;
      unconditional.first = other;
      const CacheReason reason = conditional.run(cache, at).reason;
      return std::pair(reason, unconditional.run(cache, at, 0, Branch::unconditional).reason);
    };
    step(0, 1.0F, 1.0F);
    EXPECT_EQ(step(1, 1.0F, 5.0F), std::pair(CacheReason::reused, follow ? CacheReason::reused : CacheReason::changed));
    EXPECT_EQ(step(2, 2.0F, 5.0F), std::pair(CacheReason::changed, follow ? CacheReason::conditional : CacheReason::reused));
    EXPECT_EQ(step(3, 2.0F, kNan), std::pair(CacheReason::reused, CacheReason::non_finite));  // its own signal has to be one
    step(4, 9.0F, 5.0F);
    EXPECT_EQ(step(5, 9.0F, 5.0F), std::pair(CacheReason::reused, CacheReason::reused));
    unconditional.first = 9.0F;  // a step without a conditional forward
    EXPECT_EQ(unconditional.run(cache, 6, 0, Branch::unconditional).reason, CacheReason::changed);
  }
}

TEST(StepCache, SamplesOfABatchDecideEachForItself) {
  StepCache cache(first_block(0.1F));
  std::vector<Model> samples(3);
  for (std::uint64_t s = 0; s < 3; ++s) {
    samples[s].rest = 100.0F * static_cast<float>(s + 1);
    cache.begin_request(s, schedule(6, 0));
    samples[s].run(cache, 0, s);
  }
  samples[1].first = 2.0F;
  EXPECT_EQ(samples[0].run(cache, 1, 0).reason, CacheReason::reused);
  EXPECT_EQ(samples[1].run(cache, 1, 1).reason, CacheReason::changed);
  const Model::Result third = samples[2].run(cache, 1, 2);
  EXPECT_EQ(third.reason, CacheReason::reused);
  EXPECT_EQ(third.x, 302.0F);
}

// A character per step: '.' reused, '#' computed.
std::string pattern_of(Model& model, StepCache& cache, int steps) {
  std::string pattern;
  for (int step = 0; step < steps; ++step) pattern += model.run(cache, step).reason == CacheReason::reused ? '.' : '#';
  return pattern;
}

TEST(StepCache, NoMoreSkipsInARowThanAllowed) {
  StepCacheConfig config = first_block(1e6F);
  config.max_consecutive_skips = 2;
  StepCache cache(config);
  cache.begin_request(0, schedule(9, 0));
  Model model;
  const std::string pattern = pattern_of(model, cache, 9);
  EXPECT_EQ(pattern, "#..#..#.#");
  EXPECT_EQ(cache.totals().count(CacheReason::max_skips), 2);
}

TEST(StepCache, WarmUpCountsPerExpert) {
  StepCacheConfig config = first_block(1e6F, 1e6F);
  config.warm_up_steps = 3;
  StepCache cache(config);
  cache.begin_request(0, schedule(5, 6));
  Model model;
  const std::string pattern = pattern_of(model, cache, 11);
  EXPECT_EQ(pattern, "###.####..#");
}

TEST(StepCache, FewStepSchedulesRunAsWithoutACache) {
  StepCacheConfig config;
  config.method = FirstBlockCache{.threshold_high = 1e6F, .threshold_low = 1e6F};
  StepCache cache(config);
  cache.begin_request(0, schedule(4, 4));
  Model model;
  for (int step = 0; step < 8; ++step) EXPECT_EQ(model.run(cache, step).reason, CacheReason::too_few_steps);
  EXPECT_EQ(cache.totals().peak_bytes, 0U);
}

TEST(StepCache, ResidualsKeepTheirValueInEveryDtype) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    StepCache cache(first_block(1e6F));
    cache.begin_request(0, schedule(9, 0));
    Model model;
    model.dtype = dtype;
    model.tokens = 70;
    model.width = 997;  // more than one block of partial sums, and a tail
    model.run(cache, 0);
    EXPECT_EQ(model.run(cache, 1).x, 12.0F);
    EXPECT_EQ(cache.bytes(), 2 * 70 * 997 * dtype_bytes(dtype));
  }
}

TEST(StepCache, DecisionsDoNotDependOnThreads) {
  const int threads = num_threads();
  std::vector<CacheSums> sums;
  for (const int n : {1, 3}) {
    set_num_threads(n);
    StepCache cache(first_block(0.5F), {}, [&](const CacheSums& own) { return sums.push_back(own), own; });
    cache.begin_request(0, schedule(5, 0));
    Model model;
    model.tokens = 300;
    model.width = 1001;
    model.run(cache, 0);
    model.first = 1.1F;
    model.run(cache, 1);
  }
  set_num_threads(threads);
  ASSERT_EQ(sums.size(), 2U);
  EXPECT_EQ(sums[0].change, sums[1].change);
  EXPECT_EQ(sums[0].reference, sums[1].reference);
  EXPECT_NEAR(sums[0].change / sums[0].reference, 0.1, 1e-5);
}

TEST(StepCache, RefusesWhatDoesNotFit) {
  StepCache cache(first_block());
  EXPECT_THROW(cache.forward(3, 0, Branch::conditional, {}), Error);
  EXPECT_THROW(cache.begin_request(0, std::vector<int>{0, 2}), Error);
  cache.begin_request(0, schedule(2, 2));
  EXPECT_THROW(cache.forward(0, 4, Branch::conditional, {}), Error);
  EXPECT_THROW(cache.forward(0, -1, Branch::conditional, {}), Error);
  Workspace ws;
  const Tensor wrong(DType::f64, {2, 2});
  CachedForward forward = cache.forward(0, 0, Branch::conditional, {});
  EXPECT_THROW(forward.before_blocks(wrong, {}, {}, ws), Error);
  const Tensor x(DType::f32, {2, 4});
  EXPECT_THROW(forward.before_blocks(x.view().slice(1, 0, 2), {}, {}, ws), Error);
}

// d per step: |1.1 - 1| / 1 = 0.1, then 0.1, ...; P(d) = 2 d.
TEST(TeaCache, AddsUpThePolynomialOfTheTimeSignal) {
  StepCacheConfig config = first_block();
  config.method = TeaCache{.threshold_high = 0.5F, .coefficients = {2.0, 0.0}};
  StepCache cache(config);
  cache.begin_request(0, schedule(9, 0));
  Model model;
  std::string pattern;
  float t = 1.0F;
  for (int step = 0; step < 9; ++step, t *= 1.1F) {
    const Tensor time(DType::f32, {1, 2});
    time.as<float>()[0] = time.as<float>()[1] = t;
    model.rest = 10.0F * static_cast<float>(step + 1);
    const Model::Result result = model.run(cache, step, 0, Branch::conditional, time);
    pattern += result.reason == CacheReason::reused ? '.' : '#';
    if (step == 2) {
      EXPECT_EQ(result.x, 12.0F);  // both blocks of step 0
    }
  }
  EXPECT_EQ(pattern, "#..#..#.#");           // .2, .4, then .6
  EXPECT_THROW(model.run(cache, 0), Error);  // a host without a time signal
}

TEST(MagCache, AddsUpWhatTheRatiosLose) {
  StepCacheConfig config = first_block();
  MagCache mag{.threshold_high = 0.35F, .threshold_low = 0.0F, .retention = 0.25F};
  mag.ratios.high.conditional = std::vector<double>(10, 0.9);
  mag.ratios.high.unconditional = std::vector<double>(10, 1.0);
  config.method = mag;
  StepCache cache(config);
  cache.begin_request(0, schedule(10, 0));
  Model model;
  std::string conditional;
  std::string unconditional;
  for (int step = 0; step < 10; ++step) {
    conditional += model.run(cache, step).reason == CacheReason::reused ? '.' : '#';
    unconditional += model.run(cache, step, 0, Branch::unconditional).reason == CacheReason::reused ? '.' : '#';
  }
  EXPECT_EQ(conditional, "###..#..##");  // .1, + .19 = .29, + .271
  EXPECT_EQ(unconditional, "###......#");
}

// "MagCache tables of Wan 2.2 interpolated to another number of steps move the switch": each expert has its own.
TEST(MagCache, TablesBelongToOneExpert) {
  StepCacheConfig config = first_block();
  MagCache mag{.threshold_high = 0.3F, .threshold_low = 0.3F, .retention = 0.0F};
  mag.ratios.high.conditional = {1.0, 1.0, 1.0};
  mag.ratios.low.conditional = {0.5, 0.5};
  config.method = mag;
  StepCache cache(config);
  cache.begin_request(0, schedule(7, 4));
  Model model;
  const std::string pattern = pattern_of(model, cache, 11);
  EXPECT_EQ(pattern, "#.....#####");
  mag.ratios.low = {};
  config.method = mag;
  StepCache other(config);
  EXPECT_THROW(other.begin_request(0, schedule(7, 4)), Error);
  EXPECT_NO_THROW(other.begin_request(0, schedule(7, 0)));
}

// The readback of a GPU's sums comes while later work runs: what happens between begin() and decide() does not matter.
TEST(CacheTrack, DecidesWhenTheSumsArrive) {
  const StepCacheConfig config = first_block(0.1F);
  const std::vector<CachePlace> places = cache_places(schedule(6, 0));
  CacheTrack late(config);
  CacheTrack other(config);
  for (CacheTrack* track : {&late, &other}) {
    EXPECT_EQ(track->begin(places[0], Branch::conditional), CacheReason::first_step);
    track->end();
  }
  EXPECT_EQ(late.begin(places[1], Branch::conditional), std::nullopt);
  EXPECT_EQ(other.begin(places[1], Branch::conditional), std::nullopt);
  EXPECT_EQ(other.decide({2.0, 10.0}), CacheReason::changed);
  EXPECT_EQ(late.decide({0.5, 10.0}), CacheReason::reused);
  late.end();
  EXPECT_EQ(late.begin(places[2], Branch::conditional), std::nullopt);
  EXPECT_EQ(other.begin(places[2], Branch::conditional), CacheReason::no_reference);  // never ended
}

TEST(StepCacheConfig, NamesFilesAndText) {
  EXPECT_FALSE(parse_step_cache_config("off").on());
  const StepCacheConfig config = parse_step_cache_config("first_block");
  EXPECT_EQ(std::get<FirstBlockCache>(config.method).threshold_high, 0.05F);
  EXPECT_EQ(std::get<FirstBlockCache>(config.method).threshold_low, 0.20F);
  EXPECT_EQ(to_json(config),
            R"({"method":"first_block","threshold_high":0.05,"threshold_low":0.2,"accumulate":false,"follow_conditional":true,)"
            R"("max_consecutive_skips":3,"warm_up_steps":1,"min_steps":9})");
  for (
      const char* text :
      {R"({"method":"off"})", R"({"method":"first_block","threshold_low":0.1,"accumulate":true,"min_steps":0})",
       R"({"method":"teacache","coefficients":[-5.21862437e4,9.23041404e3,-5.28275948e2,1.36987616e1,-4.99875664e-2],"signal":"projection"})",
       R"({"method":"magcache","ratios":{"high":{"conditional":[1.0,0.99]},"low":{"conditional":[0.9],"unconditional":[0.8]}}})"}) {
    const std::string json = to_json(parse_step_cache_config(text));
    EXPECT_EQ(to_json(parse_step_cache_config(json)), json);
  }
}

TEST(StepCacheConfig, RefusalsNameTheirKey) {
  const auto refuses = [](const std::string& text, const char* what) {
    try {
      parse_step_cache_config(text);
      ADD_FAILURE() << "accepted " << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(what)) << text;
    }
  };
  refuses("fastest", "expected one of off, first_block, teacache, magcache, a JSON file or JSON text");
  refuses("", "got nothing");
  refuses(R"({"threshold_high":0.1})", "method: expected one of");
  refuses(R"({"method":"first_block","threshold":0.1})", "unknown key \"threshold\"");
  refuses(R"({"method":"off","min_steps":1})", "unknown key \"min_steps\"");
  refuses(R"({"method":"first_block","threshold_high":-0.1})", "threshold_high");
  refuses(R"({"method":"first_block","threshold_low":"much"})", "threshold_low");
  refuses(R"({"method":"first_block","max_consecutive_skips":0})", "max_consecutive_skips");
  refuses(R"({"method":"first_block","warm_up_steps":0})", "warm_up_steps");
  refuses("teacache", "coefficients");
  refuses(R"({"method":"teacache","coefficients":[1,"2"]})", "coefficients");
  refuses(R"({"method":"teacache","coefficients":[1],"signal":"latents"})", "signal: expected one of embedding, projection");
  refuses("magcache", "ratios.high.conditional");
  refuses(R"({"method":"magcache","ratios":{"high":{"conditional":[0]}}})", "ratios.high");
  refuses(R"({"method":"magcache","calibration":"m.json","ratios":{"high":{"conditional":[1]}}})", "ratios: expected none beside");
  refuses(R"({"method":"magcache","ratios":{"middle":{}}})", "unknown key \"ratios.middle\"");
  refuses(R"({"method":"magcache","retention":2,"ratios":{"high":{"conditional":[1]}}})", "retention");
  StepCacheConfig unread = parse_step_cache_config(R"({"method":"magcache","calibration":"m.json"})");
  EXPECT_THROW(StepCache{unread}, Error);  // with_model_calibration() reads it
  StepCacheConfig config = first_block();
  std::get<FirstBlockCache>(config.method).threshold_high = kNan;
  EXPECT_THROW(StepCache{config}, Error);
}

}  // namespace
}  // namespace winnow
