// One attention call: gate, plan, result, tally.
#include "winnow/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/random.h"
#include "winnow/error.h"
#include "winnow/workspace.h"

namespace winnow {
namespace {

using testing::HasSubstr;

struct Call {
  Tensor q, k, v, out;
  Workspace ws;
  Call(std::int64_t Sq, std::int64_t Sk, std::int64_t H = 2, std::int64_t D = 16)
      : q(DType::f32, {1, Sq, H, D}), k(DType::f32, {1, Sk, H, D}), v(DType::f32, {1, Sk, H, D}), out(DType::f32, {1, Sq, H, D}) {
    std::uint64_t stream = 0;
    for (const Tensor* t : {&q, &k, &v}) fill_normal({t->as<float>(), static_cast<std::size_t>(t->numel())}, 7, stream++);
    for (std::int64_t i = 0; i < q.numel(); ++i) q.as<float>()[i] *= 4.0F;
  }
  CallReport run(AttentionSession& session, const StepContext& context = {}, const AttendOptions& options = {}) {
    CallReport report = session.attend(context, q, k, v, out, ws, options);
    EXPECT_EQ(ws.used_bytes(), 0U) << "memory was not given back";
    return report;
  }
  std::vector<float> result() const { return {out.as<float>(), out.as<float>() + out.numel()}; }
};

AttentionConfig config_of(Method method, GateOptions gate = {}) {
  AttentionConfig config;
  config.method = std::move(method);
  config.gate = gate;
  return config;
}

TEST(Session, DenseIsRequestedAndEqualsAttend) {
  Call call(200, 200);
  AttentionSession session(AttentionConfig{});
  const CallReport report = call.run(session);
  EXPECT_EQ(report.reason, DenseReason::requested);
  EXPECT_EQ(report.density, 1.0);
  EXPECT_EQ(report.pairs, 2.0 * 200 * 200);
  EXPECT_STRNE(report.executor, "");
  const std::vector<float> by_session = call.result();
  const TilePlan plan = TilePlan::dense(plan_geometry(call.q, call.k, {}), DenseReason::requested);
  attend(plan, call.q, call.k, call.v, call.out, {}, call.ws);
  EXPECT_EQ(call.result(), by_session);
}

TEST(Session, EveryGatedCallIsDenseAndCounted) {
  Call call(700, 700);
  AttentionSession dense(AttentionConfig{});
  call.run(dense);
  const std::vector<float> expected = call.result();
  AttentionSession session(
      config_of(MeanPool{.cdf = 0.3F}, {.skip_first_steps = 1, .skip_first_layers = 1, .disabled_until_timestep = 0.8}));
  const auto at = [&](int step, int layer, std::optional<double> timestep) {
    StepContext context;
    context.step = step;
    context.layer = layer;
    context.timestep = timestep;
    return call.run(session, context);
  };
  EXPECT_EQ(at(0, 1, 0.5).reason, DenseReason::skip_first_steps);
  EXPECT_EQ(call.result(), expected);
  EXPECT_EQ(at(1, 0, 0.5).reason, DenseReason::skip_first_layers);
  EXPECT_EQ(at(1, 1, 0.9).reason, DenseReason::disabled_until_timestep);
  EXPECT_EQ(at(1, 1, {}).reason, DenseReason::missing_timestep);
  EXPECT_EQ(call.result(), expected);
  const CallReport sparse = at(1, 1, 0.5);
  EXPECT_EQ(sparse.reason, DenseReason::none);
  EXPECT_LT(sparse.density, 0.9);
  EXPECT_NE(call.result(), expected);

  const SessionTotals& totals = session.totals();
  EXPECT_EQ(totals.calls, 5);
  for (const DenseReason reason : {DenseReason::none, DenseReason::skip_first_steps, DenseReason::skip_first_layers,
                                   DenseReason::disabled_until_timestep, DenseReason::missing_timestep}) {
    EXPECT_EQ(totals.by_reason[static_cast<std::size_t>(reason)], 1) << dense_reason_name(reason);
  }
  EXPECT_DOUBLE_EQ(totals.density(), (4.0 + sparse.density) / 5.0);
  session.reset();
  EXPECT_EQ(session.totals().calls, 0);
  EXPECT_EQ(session.totals().density(), 1.0);
}

TEST(Session, DensityIsWeightedByPairs) {
  AttentionSession session(config_of(MeanPool{.cdf = 0.3F}, {.min_seq_len = 500}));
  Call small(400, 400);
  Call large(800, 800);
  EXPECT_EQ(small.run(session).reason, DenseReason::min_seq_len);
  const double density = large.run(session).density;
  EXPECT_DOUBLE_EQ(session.totals().density(), (400.0 * 400 + density * 800 * 800) / (400.0 * 400 + 800.0 * 800));
}

TEST(Session, AMissingTimestepIsReportedOncePerRun) {
  std::vector<std::string> codes;
  AttentionSession session(config_of(MeanPool{}, {.disabled_until_timestep = 0.5}),
                           [&](const Diagnostic& d) { codes.emplace_back(d.code); });
  Call call(100, 100);
  call.run(session);
  call.run(session);
  EXPECT_THAT(codes, testing::ElementsAre("gate.missing_timestep"));
  session.reset();
  call.run(session);
  EXPECT_EQ(codes.size(), 2U);
}

TEST(Session, CrossAttentionStaysDense) {
  AttentionSession session(config_of(MeanPool{.cdf = 0.1F}));
  Call call(300, 77);
  EXPECT_EQ(call.run(session).reason, DenseReason::cross_attention);
  Call equal(300, 300);
  StepContext context;
  context.role = AttentionRole::cross;
  EXPECT_EQ(equal.run(session, context).reason, DenseReason::cross_attention);
}

TEST(Session, SkipSoftmaxCountsHalfOfWhatItDrops) {
  Call call(512, 512, 1);
  for (std::int64_t s = 64; s < 512; ++s) {  // logits of the first 64 keys tower over the rest
    for (std::int64_t d = 0; d < 16; ++d) call.k.as<float>()[s * 16 + d] = 0.0F;
  }
  for (std::int64_t i = 0; i < call.q.numel(); ++i) call.q.as<float>()[i] = 1.0F;
  for (std::int64_t i = 0; i < 64 * 16; ++i) call.k.as<float>()[i] = 8.0F;
  AttentionSession session(config_of(SkipSoftmax{.threshold = 1e-3F}));
  const CallReport report = call.run(session);
  EXPECT_EQ(report.reason, DenseReason::none);
  EXPECT_LT(report.density, 0.75);  // at best 1/8 + 7/16
  EXPECT_GE(report.density, 0.5);
  AttentionSession off(config_of(SkipSoftmax{.threshold = 0.0F}));
  const CallReport dense = call.run(off);
  EXPECT_EQ(dense.reason, DenseReason::requested);
  EXPECT_EQ(dense.density, 1.0);
  AttentionSession gated(config_of(SkipSoftmax{.threshold = 1e-3F}, {.skip_first_steps = 1}));
  EXPECT_EQ(call.run(gated, {}, {.skip_threshold_log2 = -1.0F}).density, 1.0);  // a dense call skips nothing
}

TEST(Session, OracleAndCallersExecutor) {
  AttentionSession session(config_of(Oracle{.density = 0.5F}));
  Call call(512, 512);
  const CallReport report = call.run(session, {}, {.executor = "reference"});
  EXPECT_DOUBLE_EQ(report.density, 0.5);
  EXPECT_STREQ(report.executor, "reference");
  EXPECT_STREQ(session.totals().executor, "reference");
}

TEST(Session, FixedPlans) {
  const auto path = std::filesystem::temp_directory_path() / ("winnow_session_" + std::to_string(::getpid()) + ".safetensors");
  Call call(256, 256, 1);
  PlanGeometry geometry = plan_geometry(call.q, call.k, {});
  PlanBuilder::from_rows(geometry, Skipped::drop, {{0, 1}, {2, 3}}).save(path.string());
  AttentionSession session(config_of(FixedPlan{path.string()}));
  EXPECT_DOUBLE_EQ(call.run(session).density, 0.5);
  Call other(300, 300, 1);
  try {
    other.run(session);
    ADD_FAILURE() << "a plan of another shape was used";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("Sq=256"));
  }
  EXPECT_EQ(session.totals().calls, 1);
  std::filesystem::remove(path);
  EXPECT_THROW(AttentionSession(config_of(FixedPlan{path.string()})), Error);
}

TEST(Session, BudgetsPerHeadComeFromAFile) {
  const std::string path = testing::TempDir() + "/budgets_" + std::to_string(::getpid()) + ".json";
  const auto write = [&](const char* text) { std::ofstream(path) << text; };
  const auto density = [&](int layer) {
    AttentionSession session(config_of(SubBlock{.neighbors = false, .budgets = path}));
    Call call(640, 640);  // 10 key tiles
    StepContext context;
    context.layer = layer;
    context.num_layers = 9;
    return call.run(session, context).density;
  };
  const auto heads = static_cast<int>(Call(640, 640).q.view().size(2));
  const auto list = [&](const char* share) {
    std::string text = "[";
    for (int h = 0; h < heads; ++h) text += std::string(h == 0 ? "" : ", ") + share;
    return text + "]";
  };
  write((R"({"keep": )" + list("0.3") + "}").c_str());
  EXPECT_NEAR(density(7), 0.3, 1e-12);
  write((R"({"keep": [)" + list("0.3") + ", " + list("0.5") + "]}").c_str());
  EXPECT_NEAR(density(1), 0.5, 1e-12);
  EXPECT_THROW(density(2), Error);  // no such layer
  for (const char* bad : {"[0.5]", "{}", R"({"keep": []})", R"({"keep": [0]})", R"({"keep": ["a"]})", R"({"keep": [[0.5], 1]})",
                          R"({"keep": [0.5], "more": 1})", R"({"keep": [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]})"}) {
    write(bad);
    EXPECT_THROW(density(0), Error) << bad;
  }
  std::filesystem::remove(path);
  EXPECT_THROW(density(0), Error);
}

TEST(Session, ReportsWhatWasAskedAndGiven) {
  AttentionSession session(config_of(SubBlock{.sparsity = 0.75F, .neighbors = false}));
  Call call(640, 640);
  const CallReport report = call.run(session);
  EXPECT_EQ(report.selected.asked * 10, report.selected.candidates * 3);  // ceil(2.5) of 10 tiles
  EXPECT_EQ(report.selected.kept, report.selected.asked);
  EXPECT_NEAR(report.density, 0.3, 1e-12);
}

TEST(Session, MistakesAreErrorsAtConstruction) {
  EXPECT_THROW(AttentionSession(config_of(MeanPool{.cdf = 2.0F})), Error);
  EXPECT_THROW(AttentionSession(config_of(Dense{}, {.skip_first_steps = -1})), Error);
  AttentionConfig config;
  config.executor = "abacus";
  try {
    const AttentionSession session(config);
    ADD_FAILURE() << "an unknown executor was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("abacus"));
    EXPECT_THAT(error.what(), HasSubstr("reference"));
  }
  config.executor = "sm80_mma";  // there is no selection on a GPU
  EXPECT_THROW(AttentionSession{config}, Error);
}

TEST(Session, WrongCallsAreErrorsAndAreNotCounted) {
  AttentionSession session(config_of(MeanPool{}));
  Call call(100, 100);
  StepContext context;
  context.timestep = 950.0;
  EXPECT_THROW(call.run(session, context), Error);
  EXPECT_THROW(session.attend({}, call.q, Tensor(DType::f32, {1, 100, 3, 16}), call.v, call.out, call.ws), Error);
  EXPECT_THROW(session.attend({}, call.q, call.k, Tensor(DType::f32, {1, 99, 2, 16}), call.out, call.ws), Error);
  EXPECT_EQ(session.totals().calls, 0);
  EXPECT_EQ(call.ws.used_bytes(), 0U);
}

}  // namespace
}  // namespace winnow
