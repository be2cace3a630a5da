// Calibrations that are interrupted and go on: they end as if nothing had happened, and measure nothing twice.
#include "report/unfinished.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "core/random.h"
#include "core/safetensors.h"
#include "report/budget_study.h"
#include "report/calibration.h"
#include "report/magnitudes.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"
#include "winnow/error.h"

namespace winnow::report {
namespace {

using testing::HasSubstr;

constexpr int kSteps = 4;
constexpr int kLayers = 2;
const std::vector<std::string> kPrompts = {"a", "b"};

// Stands in for an engine: calls that depend on seed and step. Stops after `calls_left` attention calls.
class Model {
 public:
  int calls_left = 1 << 20;
  int runs = 0;

  GenerateResult operator()(const GenerateOptions& run) {
    ++runs;
    for (int step = 0; step < kSteps; ++step) {
      StepContext context;
      context.step = step;
      context.num_steps = kSteps;
      context.num_layers = kLayers;
      context.expert = step / 2;
      context.timestep = 1.0 - step / 4.0;
      if (run.hidden_observer) show_hidden(run, context);
      for (context.layer = 0; context.layer < kLayers; ++context.layer) show_attention(run, context);
    }
    GenerateResult result;
    result.report.attention.executor = "x";
    return result;
  }

 private:
  void show_attention(const GenerateOptions& run, const StepContext& context) {
    if (--calls_left < 0) throw Cancelled("generate");
    if (!run.attention_observer) return;
    const std::uint64_t seed = run.seed * 100 + static_cast<std::uint64_t>(context.step * kLayers + context.layer);
    std::uint64_t stream = 0;
    for (const Tensor* t : {&q_, &k_, &v_}) fill_normal({t->as<float>(), static_cast<std::size_t>(t->numel())}, seed, stream++);
    for (std::int64_t i = 0; i < q_.numel(); ++i) {
      q_.as<float>()[i] *= 6.0F;
      k_.as<float>()[i] /= 1.0F + static_cast<float>(i / 32 / 64);  // later key tiles weigh less
    }
    run.attention_observer({context, q_, k_, v_});
  }

  // Residuals: 1, 2, then 4, 16, in both tokens; times the seed.
  void show_hidden(const GenerateOptions& run, const StepContext& context) {
    constexpr float kResiduals[kSteps] = {1.0F, 2.0F, 4.0F, 16.0F};
    const Tensor x(DType::bf16, {2, 8});
    for (const bool after : {false, true}) {
      const Tensor values(DType::f32, {2, 8});
      for (std::int64_t i = 0; i < 16; ++i) {
        values.as<float>()[i] = 0.5F + (after ? kResiduals[context.step] * static_cast<float>(run.seed) : 0.0F);
      }
      convert(values, x);
      run.hidden_observer({context, after, x});
    }
  }

  Tensor q_{DType::f32, {1, 300, 2, 16}}, k_{DType::f32, {1, 300, 2, 16}}, v_{DType::f32, {1, 300, 2, 16}};
};

class UnfinishedWork : public tests::FolderTest {
 protected:
  Unfinished file(bool resume, const std::string& identity = "mine") const { return {path("c.unfinished"), {{"who", identity}}, resume}; }
  GenerateOptions options() const {
    GenerateOptions options;
    options.seed = 1;
    options.steps = kSteps;
    return options;
  }
};

TEST_F(UnfinishedWork, BudgetsGoOnAfterTheLastWholeStep) {
  BudgetOptions budget;
  budget.generate = options();
  budget.prompts = kPrompts;
  Model whole;
  const BudgetStudy expected = measure_budgets(std::ref(whole), budget);
  ASSERT_EQ(expected.points.size(), 2U * kSteps * kLayers * 2U);

  Model interrupted;
  interrupted.calls_left = kSteps * kLayers + 5;  // in the third step of the second run
  const Unfinished begun = file(false);
  EXPECT_THROW(measure_budgets(std::ref(interrupted), budget, &begun), Cancelled);
  const Unfinished resumed = file(true);
  ASSERT_FALSE(resumed.taken().is_null());
  EXPECT_EQ(measured_study(resumed).points.size(), (kSteps + 2) * kLayers * 2U);
  Model rest;
  const BudgetStudy study = measure_budgets(std::ref(rest), budget, &resumed);
  EXPECT_EQ(rest.runs, 1) << "the first prompt is done";
  EXPECT_EQ(measured_json(study), measured_json(expected));
  resumed.finish();
  EXPECT_THAT(listing(), testing::IsEmpty());
}

TEST_F(UnfinishedWork, SkipSoftmaxGoesOnAfterTheLastPrompt) {
  Model whole;
  const SkipSoftmaxRun expected = calibrate_skip_softmax(std::ref(whole), options(), kPrompts, folder());
  Model interrupted;
  interrupted.calls_left = kSteps * kLayers + 1;
  const Unfinished begun = file(false);
  EXPECT_THROW(calibrate_skip_softmax(std::ref(interrupted), options(), kPrompts, folder(), &begun), Cancelled);
  const Unfinished resumed = file(true);
  Model rest;
  const SkipSoftmaxRun run = calibrate_skip_softmax(std::ref(rest), options(), kPrompts, folder(), &resumed);
  EXPECT_EQ(rest.runs, 1);
  ASSERT_EQ(run.gaps.size(), 2U);
  for (std::size_t e = 0; e < 2; ++e) {
    EXPECT_EQ(run.gaps[e].bins(), expected.gaps[e].bins());
    EXPECT_EQ(run.calibration.experts[e]->a, expected.calibration.experts[e]->a);
    EXPECT_EQ(run.calibration.experts[e]->b, expected.calibration.experts[e]->b);
  }
  EXPECT_EQ(run.calibration.executor, expected.calibration.executor);
}

TEST_F(UnfinishedWork, MagnitudesAreRatiosOfResidualsOfOneExpert) {
  Model model;
  const MagnitudeRun run = calibrate_magnitudes(std::ref(model), options(), kPrompts, folder());
  EXPECT_EQ(run.calibration.ratios.high.conditional, (std::vector<double>{1.0, 2.0}));
  EXPECT_EQ(run.calibration.ratios.low.conditional, (std::vector<double>{1.0, 4.0}));  // nothing crosses the switch
  EXPECT_TRUE(run.calibration.ratios.low.unconditional.empty());
  EXPECT_EQ(run.calibration.tokens, 2);
  EXPECT_EQ(run.calibration.executor, "x");

  Model interrupted;
  interrupted.calls_left = kSteps * kLayers + 1;
  const Unfinished begun = file(false);
  EXPECT_THROW(calibrate_magnitudes(std::ref(interrupted), options(), kPrompts, folder(), &begun), Cancelled);
  const Unfinished resumed = file(true);
  Model rest;
  EXPECT_EQ(calibrate_magnitudes(std::ref(rest), options(), kPrompts, folder(), &resumed).calibration.ratios, run.calibration.ratios);
  EXPECT_EQ(rest.runs, 1);
}

TEST_F(UnfinishedWork, IsTakenOverByTheSameWorkOnly) {
  file(false).keep({{"prompts", 1}});
  EXPECT_EQ(file(true).taken().at("prompts"), 1);
  EXPECT_TRUE(file(false).taken().is_null());
  EXPECT_TRUE(file(true, "another").taken().is_null());
  EXPECT_THAT(tests::message_of([&] {
                Model model;
                const Unfinished wrong = file(true);
                calibrate_magnitudes(std::ref(model), options(), kPrompts, folder(), &wrong);
              }),
              HasSubstr("c.unfinished: expected what an interrupted calibration has left"));
  std::ofstream(path("c.unfinished")) << R"({"format":"other"})";
  EXPECT_THROW(file(true), Error);
  std::ofstream(path("c.unfinished")) << "[";
  EXPECT_THROW(file(true), Error);
}

}  // namespace
}  // namespace winnow::report
