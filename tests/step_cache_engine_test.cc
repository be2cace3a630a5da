// The step cache in the engine: what it may change, what it may not, and what it reports.
#include <gmock/gmock.h>

#include <cstring>
#include <string>
#include <vector>

#include "calib/magnitudes.h"
#include "engine_testing.h"
#include "tests/support/message_of.h"
#include "winnow/engine.h"
#include "winnow/error.h"

namespace winnow {
namespace {

using testing::source;

const char* const kAlways = R"({"method":"first_block","threshold_high":1e6,"threshold_low":1e6,"max_consecutive_skips":2})";
const char* const kNever = R"({"method":"first_block","threshold_high":1e-30,"threshold_low":1e-30})";

// A step takes milliseconds; 4 high-noise steps, 6 low-noise ones.
GenerateOptions small(const char* cache) {
  GenerateOptions options;
  options.prompt = "a small green ring";
  options.width = 32;
  options.height = 16;
  options.frames = 5;
  options.steps = 10;
  options.cache = parse_step_cache_config(cache);
  return options;
}

bool same_bits(const GenerateResult& a, const GenerateResult& b) {
  return a.latents.bytes() == b.latents.bytes() && std::memcmp(a.latents.view().data, b.latents.view().data, a.latents.bytes()) == 0;
}

// '#': both branches computed, '.': both reused, '?': one of them.
std::string pattern(const GenerateReport& report) {
  std::string text;
  for (const StepReport& step : report.steps) text += step.reused == 0 ? '#' : step.reused == step.forwards ? '.' : '?';
  return text;
}

TEST(EngineStepCache, OneThatNeverHitsChangesNoBit) {
  for (const Precision precision : {Precision::bf16, Precision::f32}) {
    Engine engine(source("models/winnow-tiny"), {.precision = precision, .progress = {}});
    const GenerateResult off = engine.generate(small("off"));
    const GenerateResult never = engine.generate(small(kNever));
    EXPECT_TRUE(same_bits(off, never));
    EXPECT_EQ(off.report.cache.forwards(), 0);
    EXPECT_EQ(never.report.cache.forwards(), 20);
    EXPECT_EQ(never.report.cache.reused(), 0);
    EXPECT_GT(never.report.cache.count(CacheReason::changed), 0);
    EXPECT_GT(never.report.cache.peak_bytes, 0U);
  }
}

TEST(EngineStepCache, SkipsBetweenTheEndsOfEachExpert) {
  Engine engine(source("models/winnow-tiny"), {});
  const GenerateOptions options = small(kAlways);
  const GenerateResult result = engine.generate(options);
  ASSERT_EQ(result.report.high_noise_steps, 4);
  EXPECT_EQ(pattern(result.report), "#..##..#.#");
  EXPECT_EQ(result.report.cache.experts[0].reused(), 4);
  EXPECT_EQ(result.report.cache.experts[1].reused(), 6);
  EXPECT_EQ(result.report.cache.count(CacheReason::max_skips), 2);
  EXPECT_EQ(result.report.cache.peak_bytes, engine.estimate(options).cache_bytes);
  EXPECT_FALSE(same_bits(result, engine.generate(small("off"))));
  // A reused forward runs one of the six layers.
  EXPECT_EQ(result.report.attention.calls, 10 * 6 + 10);
}

TEST(EngineStepCache, WithoutGuidanceAndInF32) {
  for (const Precision precision : {Precision::bf16, Precision::f32}) {
    Engine engine(source("models/winnow-tiny"), {.precision = precision, .progress = {}});
    GenerateOptions options = small(kAlways);
    options.guidance_scale = 1.0;
    const GenerateResult result = engine.generate(options);
    EXPECT_EQ(pattern(result.report), "#..##..#.#");
    EXPECT_EQ(result.report.cache.forwards(), 10);
    EXPECT_EQ(result.report.cache.peak_bytes, engine.estimate(options).cache_bytes);
  }
}

TEST(EngineStepCache, GuidanceSwitchedOffMidRun) {
  Engine engine(source("models/winnow-tiny"), {});
  const auto run = [&](const char* cache, float until) {
    GenerateOptions options = small(cache);
    options.guidance_until = until;
    return engine.generate(options);
  };
  // In the middle of the low-noise expert, whose steps are 4 to 9.
  const GenerateResult always = run(kAlways, 0.6F);
  for (const StepReport& step : always.report.steps) EXPECT_EQ(step.forwards, step.step < 6 ? 2 : 1) << step.step;
  EXPECT_EQ(pattern(always.report), "#..##..#.#");  // the conditional branch keeps what it has
  EXPECT_EQ(always.report.cache.forwards(), 16);
  EXPECT_EQ(always.report.cache.count(CacheReason::no_reference), 0);
  EXPECT_TRUE(same_bits(run(kNever, 0.6F), run("off", 0.6F)));
  // Where it makes no difference how it came about.
  GenerateOptions one_expert = small(kAlways);
  one_expert.guidance_scale_2 = 1.0;
  EXPECT_TRUE(same_bits(run(kAlways, 0.4F), engine.generate(one_expert)));
  GenerateOptions unguided = small(kAlways);
  unguided.guidance_scale = 1.0;
  EXPECT_TRUE(same_bits(run(kAlways, 0.0F), engine.generate(unguided)));
  EXPECT_FALSE(same_bits(run(kAlways, 0.4F), run(kAlways, 0.6F)));
}

TEST(EngineStepCache, FollowsTheScheduleWhereverItSwitches) {
  Engine engine(source("models/winnow-tiny"), {});
  for (const double boundary : {0.0, 0.6, 0.95, 1.0}) {
    GenerateOptions options = small(kAlways);
    options.boundary_ratio = boundary;
    const GenerateReport report = engine.generate(options).report;
    const auto high = static_cast<std::size_t>(report.high_noise_steps);
    const std::string found = pattern(report);
    EXPECT_EQ(found.front(), '#');
    EXPECT_EQ(found.back(), '#');
    if (high > 0 && high < 10) {
      EXPECT_EQ(found.substr(high - 1, 2), "##") << boundary;
    }
  }
}

TEST(EngineStepCache, FewStepsRunAsWithoutIt) {
  Engine engine(source("models/winnow-tiny"), {});
  GenerateOptions options = small("first_block");
  options.steps = 8;
  const GenerateResult cached = engine.generate(options);
  EXPECT_EQ(cached.report.cache.count(CacheReason::too_few_steps), 16);
  EXPECT_EQ(cached.report.cache.peak_bytes, 0U);
  options.cache = {};
  EXPECT_TRUE(same_bits(cached, engine.generate(options)));
}

TEST(EngineStepCache, TeaCacheAndMagCacheRun) {
  Engine engine(source("models/winnow-tiny"), {});
  for (const char* cache :
       {R"({"method":"teacache","coefficients":[1,0],"threshold_high":1e6,"threshold_low":1e6,"max_consecutive_skips":2})",
        R"({"method":"teacache","coefficients":[1,0],"signal":"projection","threshold_high":1e6,"threshold_low":1e6,)"
        R"("max_consecutive_skips":2})",
        R"({"method":"magcache","ratios":{"high":{"conditional":[1]},"low":{"conditional":[1]}},"retention":0,)"
        R"("max_consecutive_skips":2})"}) {
    const GenerateOptions options = small(cache);
    const GenerateResult result = engine.generate(options);
    EXPECT_EQ(pattern(result.report), "#..##..#.#") << cache;
    EXPECT_EQ(result.report.attention.calls, 10 * 6);
    EXPECT_EQ(result.report.cache.peak_bytes, engine.estimate(options).cache_bytes);
  }
}

TEST(EngineStepCache, MagCacheTakesACalibration) {
  const testing::TemporaryFolder folder;
  MagnitudeCalibration calibration;
  calibration.model = "of another model";
  calibration.tokens = 10;
  calibration.ratios = {{{1.0}, {}}, {{1.0}, {}}};
  calibration.save(folder / "m.json");
  Engine engine(source("models/winnow-tiny"), {});
  GenerateOptions options =
      small((R"({"method":"magcache","retention":0,"max_consecutive_skips":2,"calibration":")" + folder / "m.json" + "\"}").c_str());
  std::vector<std::string> codes;
  options.diagnostics = [&](const Diagnostic& d) { codes.emplace_back(d.code); };
  EXPECT_EQ(pattern(engine.generate(options).report), "#..##..#.#");
  EXPECT_THAT(codes, ::testing::ElementsAre("calibration.other_model"));
  calibration.ratios.low = {};
  calibration.save(folder / "m.json");
  EXPECT_THAT(tests::message_of([&] { engine.generate(options); }), ::testing::HasSubstr("ratios.low.conditional"));
}

// Whatever a run is, and however it ends, it leaves nothing for the next one.
TEST(EngineStepCache, RunsDoNotSeeEachOther) {
  Engine engine(source("models/winnow-tiny"), {});
  const GenerateResult alone = engine.generate(small(kAlways));
  for (int i = 0; i < 12; ++i) {
    GenerateOptions other = small(i % 3 == 0 ? "off" : kAlways);
    other.prompt = "a large red ball";
    other.width = 16 * (1 + i % 4);
    other.guidance_scale = i % 2 == 0 ? 1.0 : 3.5;
    int left = 3 + 11 * i;
    if (i % 4 == 1) other.progress = [&](const ProgressEvent&) { return --left > 0; };
    if (i % 4 == 2) {
      other.attention_observer = [&](const AttentionInputs&) {
        if (--left == 0) throw Error("observer", "enough");
      };
    }
    try {
      engine.generate(other);
    } catch (const Cancelled&) {
    } catch (const Error&) {
    }
    EXPECT_TRUE(same_bits(engine.generate(small(kAlways)), alone)) << i;
  }
}

}  // namespace
}  // namespace winnow
