// How sparse a head may be, on heads made to be flat and peaked, and what is fitted and scored from many.
#include "report/budget_study.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "winnow/attend.h"
#include "winnow/error.h"
#include "winnow/plan.h"
#include "winnow/workspace.h"

namespace winnow::report {
namespace {

using testing::HasSubstr;

// Head h has logits h times as spread as head 1.
struct Case {
  Tensor q, k, v;
  AttentionInputs call;
  explicit Case(std::int64_t S) : q(DType::f32, {1, S, 3, 16}), k(DType::f32, {1, S, 3, 16}), v(DType::f32, {1, S, 3, 16}) {
    std::uint64_t stream = 0;
    for (const Tensor* t : {&q, &k, &v}) fill_normal({t->as<float>(), static_cast<std::size_t>(t->numel())}, 11, stream++);
    for (std::int64_t i = 0; i < q.numel(); ++i) {
      const std::int64_t head = i / 16 % 3;
      // Keys of one tile lie together, so that tiles differ.
      const std::int64_t token = i / 48;
      k.as<float>()[i] = 0.3F * k.as<float>()[i] + static_cast<float>(std::sin(0.7 * static_cast<double>(token / 64 + i % 16)));
      q.as<float>()[i] *= 2.0F * static_cast<float>(head);
    }
    call.q = q;
    call.k = k;
    call.v = v;
    call.context.layer = 4;
    call.context.step = 2;
    call.context.timestep = 0.5;
  }
};

TEST(BudgetStudy, MeasuresEachHead) {
  const Case c(900);
  Workspace ws;
  const std::vector<HeadPoint> points = measure_heads(c.call, 0.1, "", ws).points;
  EXPECT_EQ(ws.used_bytes(), 0U);
  ASSERT_EQ(points.size(), 3U);
  // Head 0 is flat: every weight 1/900.
  EXPECT_NEAR(points[0].mean_log_l, std::log(900.0), 1e-4);
  EXPECT_NEAR(points[0].entropy, std::log(900.0), 1e-4);
  for (std::size_t h = 1; h < 3; ++h) {
    EXPECT_LT(points[h].mean_log_l, points[h - 1].mean_log_l);
    EXPECT_LT(points[h].entropy, points[h - 1].entropy);
    EXPECT_GE(points[h].mass95, points[h - 1].mass95);
    EXPECT_EQ(points[h].layer, 4);
    EXPECT_EQ(points[h].head, static_cast<int>(h));
  }
  EXPECT_GT(points[2].achievable, points[0].achievable);
  // A larger error allows more.
  const std::vector<HeadPoint> rough = measure_heads(c.call, 0.3, "", ws).points;
  for (std::size_t h = 0; h < 3; ++h) EXPECT_GE(rough[h].achievable, points[h].achievable);
}

TEST(BudgetStudy, RefusesWhatIsNotFiniteByName) {
  for (const auto member : {&Case::q, &Case::k, &Case::v}) {
    Case good(300);
    Case bad(300);
    (bad.*member).as<float>()[77] = std::nanf("");
    std::vector<Capture> captures;
    captures.push_back({"good", std::move(good.q), std::move(good.k), std::move(good.v), {}});
    captures.push_back({"bad", std::move(bad.q), std::move(bad.k), std::move(bad.v), {}});
    std::string message;
    try {
      measure_budgets(captures, {});
    } catch (const Error& error) {
      message = error.what();
    }
    EXPECT_THAT(message, HasSubstr("bad: q, k, v: expected finite attention"));
  }
}

TEST(BudgetTrials, EqualDensityFromBothBudgets) {
  const Case c(2560);
  Workspace ws;
  const std::vector<BudgetTrial> trials = try_budgets(c.call, "", ws);
  EXPECT_EQ(ws.used_bytes(), 0U);
  ASSERT_EQ(trials.size(), 8U);
  for (std::size_t i = 0; i < trials.size(); i += 2) {
    EXPECT_FALSE(trials[i].signal);
    EXPECT_TRUE(trials[i + 1].signal);
    EXPECT_NEAR(trials[i].density, trials[i + 1].density, 0.02);
    EXPECT_NEAR(trials[i].density, trials[i].target, 0.08);  // neighbours are kept beside the budget
    EXPECT_GT(trials[i].mass_recall, trials[i].density - 0.01);
    EXPECT_LE(trials[i].mass_recall, 1.0 + 1e-5);
    EXPECT_GT(trials[i].rel_l2, 0.0);
  }
  std::vector<BudgetTrial> twice = trials;
  twice.insert(twice.end(), trials.begin(), trials.end());
  const std::vector<BudgetTrial> means = mean_trials(twice);
  ASSERT_EQ(means.size(), 8U);
  EXPECT_DOUBLE_EQ(means[3].rel_l2, trials[3].rel_l2);
  EXPECT_TRUE(mean_trials({}).empty());
}

BudgetStudy made_study() {
  BudgetStudy study;
  study.tokens = 4752;
  study.executor = "x";
  for (int expert = 0; expert < 2; ++expert) {
    for (int i = 0; i < 40; ++i) {
      HeadPoint p;
      p.expert = expert;
      p.step = i / 4 + 10 * expert;
      p.layer = i % 2;
      p.head = i / 2 % 2;
      p.timestep = 1.0 - p.step / 20.0;
      p.mean_log_l = 2.0 + 0.1 * i;
      p.entropy = 3.0 + 0.1 * i;
      p.mass95 = 0.5;  // says nothing
      p.achievable = 0.8 - 0.015 * i - 0.1 * expert;
      study.points.push_back(p);
    }
  }
  return study;
}

TEST(BudgetStudy, FitsEachExpert) {
  BudgetOptions options;
  options.overshoot = 1.0;
  options.line = true;
  const BudgetStudy study = made_study();
  const BudgetCalibration calibration = calibrate_budgets(study, options);
  EXPECT_NEAR(calibration.expert(0).keep(2.0), 0.2, 1e-9);
  EXPECT_NEAR(calibration.expert(0).keep(4.0), 0.5, 1e-9);
  EXPECT_NEAR(calibration.expert(1).keep(4.0), 0.6, 1e-9);
  EXPECT_EQ(calibration.experts[0]->points, 40);
  EXPECT_DOUBLE_EQ(calibration.experts[0]->spearman, 1.0);
  EXPECT_EQ(calibration.tokens, 4752);
  options.line = false;
  EXPECT_NEAR(calibrate_budgets(study, options).expert(1).keep(4.0), 0.6, 1e-9);
}

TEST(BudgetStudy, Scores) {
  const BudgetStudy study = made_study();
  const std::vector<BudgetScore> scores = score_budgets(study);
  ASSERT_EQ(scores.size(), 3U);
  EXPECT_EQ(scores[0].points, 80);
  EXPECT_DOUBLE_EQ(scores[1].max_weight.value(), 1.0);
  EXPECT_LT(scores[0].max_weight.value(), 1.0);
  EXPECT_LT(scores[1].timestep.value(), -0.9);
  EXPECT_FALSE(scores[0].mass95.has_value());
  const std::vector<MapScore> maps = score_maps(study);
  ASSERT_EQ(maps.size(), 4U);
  EXPECT_EQ(maps[2].map, "line");
  EXPECT_LT(maps[2].mean_error, 0.5 * maps[0].mean_error);
  EXPECT_THAT(to_markdown(study), HasSubstr("<!-- compare:budget_rank -->"));
  const auto json = nlohmann::json::parse(to_json(study, {}));
  EXPECT_EQ(json.at("points").size(), 80U);
  EXPECT_FALSE(json.at("rank").at(0).contains("oracle_mass95"));
  // The experts change at step 10: the signal, which moves by 0.4 a step, jumps.
  const std::vector<SignalChange> changes = signal_changes(study);
  ASSERT_EQ(changes.size(), 19U);
  for (const SignalChange& c : changes) EXPECT_NEAR(c.change, c.step == 10 ? 3.6 : 0.4, 1e-9) << c.step;
  const auto panels = plot_panels(study);
  ASSERT_EQ(panels.size(), 3U);
  EXPECT_EQ(panels[2].series[0].points.size(), 19U);
  EXPECT_EQ(panels[0].series.size(), 2U);
  EXPECT_EQ(panels[0].series[0].points.size(), 20U);
}

TEST(BudgetStudy, RunsDenseAndMeasuresTheChosenSteps) {
  const Case c(300);
  BudgetOptions options;
  options.prompts = {"a", "b"};
  options.step_stride = 2;
  options.generate.seed = 5;
  options.generate.cache = parse_step_cache_config("first_block");
  std::vector<std::uint64_t> seeds;
  const Generate generate = [&](const GenerateOptions& run) {
    EXPECT_FALSE(run.cache.on());
    EXPECT_TRUE(std::holds_alternative<Dense>(run.attention.method));
    seeds.push_back(run.seed);
    for (int step = 0; step < 4; ++step) {
      for (const Branch branch : {Branch::conditional, Branch::unconditional}) {
        AttentionInputs call = c.call;
        call.context.step = step;
        call.context.branch = branch;
        call.context.expert = step / 2;
        run.attention_observer(call);
      }
    }
    return GenerateResult{};
  };
  const BudgetStudy study = measure_budgets(generate, options);
  EXPECT_THAT(seeds, testing::ElementsAre(5U, 6U));
  EXPECT_EQ(study.points.size(), 2U * 2U * 3U);
  EXPECT_EQ(study.tokens, 300);
  EXPECT_EQ(study.trials.size(), 2U * 2U * 8U);
  options.step_stride = 0;
  EXPECT_THROW(measure_budgets(generate, options), Error);
  AttentionInputs wrong = c.call;
  wrong.k = wrong.k.slice(2, 0, 1);
  Workspace ws;
  EXPECT_THROW(measure_heads(wrong, 0.1, "", ws), Error);
}

}  // namespace
}  // namespace winnow::report
