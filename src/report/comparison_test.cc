// Order of runs, minima, what is compared with what, and the JSON report; the generator is a stand-in with known times and frames.
#include "report/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "winnow/error.h"

namespace winnow::report {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Takes the times given for each method in turn; frames are 0.5, plus `offset` for everything but plain dense.
struct FakeEngine {
  std::map<std::string, std::vector<double>> seconds;
  float offset = 0.1F;
  std::int64_t side = 16;
  std::vector<std::string> order;
  std::map<std::string, std::size_t> calls;

  GenerateResult operator()(const GenerateOptions& options) {
    const std::string name = options.attention.executor.empty() ? options.attention.method_name() : options.attention.executor;
    order.push_back(name);
    GenerateResult result;
    result.report.seconds = seconds.at(name).at(calls[name]++);
    result.report.attention.attend_seconds = 0.5 * result.report.seconds;
    result.report.attention.pairs = 100.0;
    result.report.attention.computed_pairs = name == "dense" ? 100.0 : 25.0;
    result.report.attention.by_reason = {3, 2};
    result.report.steps = {{.step = 0, .expert = 0, .timestep = 1.0, .density = 0.25, .seconds = 0.5}};
    if (options.progress && !options.progress({.stage = "denoise"})) throw Cancelled("generate");
    result.frames = Tensor(DType::f32, {2, side, side, 3});
    result.latents = Tensor(DType::f32, {1, 1, 1, 1, 2});
    for (std::int64_t i = 0; i < result.frames.numel(); ++i) {
      result.frames.as<float>()[i] = 0.5F + (name == "dense" ? 0.0F : offset);
    }
    result.latents.as<float>()[0] = name == "dense" ? 1.0F : 2.0F;
    return result;
  }
};

Setting setting(const std::string& label, Method method) {
  Setting s;
  s.label = label;
  s.attention.method = std::move(method);
  return s;
}

Setting floor_setting() {
  Setting s = setting("floor", Dense{});
  s.attention.executor = "other";
  s.is_floor = true;
  return s;
}

GenerateOptions small_options() {
  GenerateOptions options;
  options.prompt = "a \"red\" ball";
  options.steps = 1;
  options.seed = 18446744073709551615U;
  return options;
}

TEST(Compare, InterleavesAndTakesTheMinimum) {
  FakeEngine fake;
  fake.seconds = {{"dense", {4.0, 3.0}}, {"mean_pool", {1.5, 2.0}}, {"other", {9.0}}};
  std::vector<std::string> begun;
  const Comparison c =
      compare(std::ref(fake), small_options(), {setting("mean_pool", MeanPool{}), setting("dense", Dense{}), floor_setting()}, 2,
              [&](const Setting& s, int run, int n) {
                EXPECT_EQ(n, 5);
                begun.push_back(std::to_string(run) + s.label);
              });
  EXPECT_THAT(fake.order, ElementsAre("mean_pool", "dense", "other", "mean_pool", "dense"));
  EXPECT_THAT(begun, ElementsAre("0mean_pool", "1dense", "2floor", "3mean_pool", "4dense"));
  ASSERT_EQ(c.dense, 1U);
  EXPECT_EQ(c.outcomes[0].seconds, 1.5);
  EXPECT_THAT(c.outcomes[0].all_seconds, ElementsAre(1.5, 2.0));
  EXPECT_EQ(c.outcomes[0].speedup, 2.0);
  EXPECT_FALSE(c.outcomes[1].speedup.has_value());
  EXPECT_EQ(c.attention_bound(), 2.0);
}

TEST(Compare, MeasuresFramesAgainstDense) {
  FakeEngine fake;
  fake.seconds = {{"dense", {1.0}}, {"mean_pool", {1.0}}};
  const Comparison c = compare(std::ref(fake), small_options(), {setting("dense", Dense{}), setting("mean_pool", MeanPool{})}, 1);
  const Outcome& sparse = c.outcomes[1];
  ASSERT_TRUE(sparse.quality.has_value());
  EXPECT_NEAR(sparse.quality->psnr_db, 20.0, 1e-4);  // offset 0.1
  EXPECT_THAT(sparse.quality->psnr_per_frame, ElementsAre(DoubleNear(20.0, 1e-4), DoubleNear(20.0, 1e-4)));
  EXPECT_EQ(sparse.quality->ssim_per_frame.size(), 2U);
  EXPECT_NEAR(sparse.latents_rel_l2.value_or(0.0), 1.0, 1e-6);
  EXPECT_THAT(describe(sparse), HasSubstr("mean_pool  density 0.250  1.00x  20.0 dB  SSIM 0."));
}

TEST(Compare, FramesSmallerThanSsimsWindowHaveNoSsim) {
  FakeEngine fake;
  fake.side = 8;
  fake.seconds = {{"dense", {1.0}}, {"mean_pool", {1.0}}};
  const Comparison c = compare(std::ref(fake), small_options(), {setting("dense", Dense{}), setting("mean_pool", MeanPool{})}, 1);
  EXPECT_FALSE(c.outcomes[1].quality->ssim.has_value());
  EXPECT_FALSE(nlohmann::json::parse(to_json(c, small_options(), {})).at("runs").at(0).contains("ssim"));
}

TEST(Compare, WithoutDenseThereIsNothingToCompareWith) {
  FakeEngine fake;
  fake.seconds = {{"mean_pool", {1.0}}, {"other", {2.0}}};
  const Comparison c = compare(std::ref(fake), small_options(), {setting("mean_pool", MeanPool{}), floor_setting()}, 1);
  EXPECT_FALSE(c.dense.has_value());
  EXPECT_FALSE(c.attention_bound().has_value());
  EXPECT_FALSE(c.outcomes[0].speedup.has_value());
  EXPECT_FALSE(nlohmann::json::parse(to_json(c, small_options(), {})).contains("dense"));
}

TEST(Compare, CancelAndBadArguments) {
  FakeEngine fake;
  fake.seconds = {{"dense", {1.0, 1.0}}};
  GenerateOptions options = small_options();
  options.progress = [](const ProgressEvent&) { return false; };
  EXPECT_THROW(compare(std::ref(fake), options, {setting("dense", Dense{})}, 1), Cancelled);
  EXPECT_THROW(compare(std::ref(fake), small_options(), {setting("dense", Dense{})}, 0), Error);
  EXPECT_THROW(compare(std::ref(fake), small_options(), {}, 1), Error);
  EXPECT_THROW(compare(std::ref(fake), small_options(), {setting("skip_softmax", SkipSoftmax{.threshold = 2.0F})}, 1), Error);
}

bool has_null(const nlohmann::json& json) {
  if (json.is_null()) return true;
  if (!json.is_structured()) return false;
  return std::any_of(json.begin(), json.end(), has_null);
}

TEST(Report, HasTheDocumentedKeysAndNoNulls) {
  FakeEngine fake;
  fake.offset = 0.0F;
  fake.seconds = {{"dense", {4.0, 4.0}}, {"mean_pool", {2.0, 2.0}}, {"other", {8.0}}};
  const Comparison c =
      compare(std::ref(fake), small_options(), {setting("dense", Dense{}), setting("mean_pool", MeanPool{}), floor_setting()}, 2);
  const auto json = nlohmann::json::parse(to_json(c, small_options(), {.model = "m", .fps = 16}));
  EXPECT_FALSE(has_null(json));
  EXPECT_EQ(json.at("model"), "m");
  EXPECT_EQ(json.at("prompt"), "a \"red\" ball");
  EXPECT_EQ(json.at("seed"), 18446744073709551615U);
  EXPECT_EQ(json.at("steps"), 1);
  EXPECT_EQ(json.at("dense").at("seconds"), 4.0);
  EXPECT_EQ(json.at("dense").at("attention_bound"), 2.0);
  ASSERT_EQ(json.at("runs").size(), 2U);
  const auto& run = json.at("runs").at(0);
  EXPECT_EQ(run.at("method"), "mean_pool");
  EXPECT_EQ(run.at("speedup"), 2.0);
  EXPECT_EQ(run.at("density"), 0.25);
  EXPECT_EQ(run.at("psnr_db"), 100.0);  // identical frames: capped
  EXPECT_EQ(run.at("ssim"), 1.0);
  EXPECT_TRUE(nlohmann::json::accept(run.at("setting").get<std::string>()));
  EXPECT_EQ(run.at("calls").at("sparse"), 3);
  EXPECT_EQ(run.at("calls").at("requested"), 2);
  EXPECT_EQ(run.at("steps_run").at(0).at("density"), 0.25);
  EXPECT_EQ(json.at("runs").at(1).at("method"), "dense");
  EXPECT_EQ(json.at("runs").at(1).at("floor"), true);
}

TEST(Report, PromptThatIsNotUtf8StaysValidJson) {
  FakeEngine fake;
  fake.seconds = {{"dense", {1.0}}};
  GenerateOptions options = small_options();
  options.prompt = "\xFF ball";
  const Comparison c = compare(std::ref(fake), options, {setting("dense", Dense{})}, 1);
  EXPECT_TRUE(nlohmann::json::accept(to_json(c, options, {})));
}

TEST(Floor, IsAnotherIsaThatRunsHere) {
  std::string first;
  for (const ExecutorInfo& info : executors()) {
    if (info.device == Device::cpu && info.available && first.empty()) first = info.isa;
  }
  const auto floor = dense_floor(DType::f32);
  if (!floor) GTEST_SKIP() << "one fast executor only";
  EXPECT_STREQ(floor->method_name(), "dense");
  for (const ExecutorInfo& info : executors()) {
    if (info.name != floor->executor) continue;
    EXPECT_TRUE(info.available);
    EXPECT_EQ(info.device, Device::cpu);
    EXPECT_NE(info.isa, "any");
  }
}

}  // namespace
}  // namespace winnow::report
