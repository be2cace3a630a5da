// Budgets from 1/l in a session: measured by one call, used by the next of the same layer, expert and branch.
#include "run/signal_keep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "calib/budget.h"
#include "core/random.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"
#include "winnow/error.h"
#include "winnow/session.h"
#include "winnow/workspace.h"

namespace winnow {
namespace {

using testing::HasSubstr;

// Head 0 is flat, head 1 is peaked.
struct Call {
  std::int64_t S;
  Tensor q, k, v, out;
  Workspace ws;
  explicit Call(std::int64_t tokens)
      : S(tokens),
        q(DType::f32, {1, S, 2, 16}),
        k(DType::f32, {1, S, 2, 16}),
        v(DType::f32, {1, S, 2, 16}),
        out(DType::f32, {1, S, 2, 16}) {
    std::uint64_t stream = 0;
    for (const Tensor* t : {&q, &k, &v}) fill_normal({t->as<float>(), static_cast<std::size_t>(t->numel())}, 3, stream++);
    for (std::int64_t i = 0; i < q.numel(); ++i) q.as<float>()[i] *= i / 16 % 2 == 0 ? 0.1F : 4.0F;
  }
  CallReport run(AttentionSession& session, int step, int layer = 0, Branch branch = Branch::conditional, int expert = 0) {
    StepContext context;
    context.step = step;
    context.num_steps = 10;
    context.layer = layer;
    context.num_layers = 2;
    context.branch = branch;
    context.expert = expert;
    return session.attend(context, q, k, v, out, ws);
  }
};

AttentionConfig config(const std::string& budget, const std::string& more = "") {
  return parse_attention_config(R"({"method":"mean_pool","density":0.5,"neighbors":false,"budget":)" + budget + more + "}");
}

TEST(SignalBudget, ADenseStepSetsTheBudgetsOfTheNext) {
  Call call(1280);
  AttentionSession session(config("{}", R"(,"skip_first_steps":1)"));
  const CallReport dense = call.run(session, 0);
  EXPECT_EQ(dense.reason, DenseReason::skip_first_steps);
  EXPECT_FALSE(dense.signal_budget);
  const CallReport sparse = call.run(session, 1);
  EXPECT_TRUE(sparse.signal_budget);

  // By hand: 1/l of the dense call through both steps of the map, rounded up to whole tiles.
  const Tensor inv_l(DType::f32, {1, 2, call.S});
  AttentionSession reference(AttentionConfig{});
  AttendOptions options;
  options.stats.inv_l = inv_l;
  reference.attend({}, call.q, call.k, call.v, call.out, call.ws, options);
  std::vector<double> signal(2);
  mean_log_l(inv_l, signal);
  EXPECT_GT(signal[0], signal[1] + 1.0);
  double density = 0.0;
  for (const double a : signal)
    density += std::ceil(static_cast<double>(static_cast<float>(free_keep(a, call.S, 0.95F, 0.6F))) * 20.0) / 20.0 / 2.0;
  EXPECT_NEAR(sparse.density, density, 1e-6);
}

TEST(SignalBudget, WithoutASignalTheMethodsOwnBudgetStands) {
  Call call(1280);
  AttentionSession session(config(R"({"min_keep":0.1,"max_keep":0.1})"));
  EXPECT_NEAR(call.run(session, 0).density, 0.5, 1e-6);
  EXPECT_NEAR(call.run(session, 1).density, 0.1, 1e-6);  // means represented what step 0 left out
  EXPECT_NEAR(call.run(session, 1, 1).density, 0.5, 1e-6);
  EXPECT_NEAR(call.run(session, 1, 0, Branch::unconditional).density, 0.5, 1e-6);
  EXPECT_NEAR(call.run(session, 2, 0, Branch::conditional, 1).density, 0.5, 1e-6);
  EXPECT_NEAR(call.run(session, 2, 1).density, 0.1, 1e-6);
  Call shorter(640);
  EXPECT_NEAR(shorter.run(session, 3).density, 0.5, 1e-6);
  session.reset();
  EXPECT_NEAR(call.run(session, 0).density, 0.5, 1e-6);
}

TEST(SignalBudget, CallsThatDropKeysGiveNoSignal) {
  Call call(1280);
  AttentionSession session(config(R"({"min_keep":0.1,"max_keep":0.1})", R"(,"means":false)"));
  EXPECT_NEAR(call.run(session, 0).density, 0.5, 1e-6);
  EXPECT_NEAR(call.run(session, 1).density, 0.5, 1e-6);
}

TEST(SignalBudget, DistributesAGivenMean) {
  Call call(1280);
  AttentionSession session(config(R"({"mean_keep":0.3})"));
  call.run(session, 0);
  EXPECT_NEAR(call.run(session, 1).density, 0.3, 0.05);  // a tile is 0.05
}

TEST(SignalBudget, SubBlockTakesItToo) {
  Call call(1280);
  AttentionSession session(parse_attention_config(R"({"method":"subblock","neighbors":false,"budget":{"min_keep":0.1,"max_keep":0.1}})"));
  EXPECT_NEAR(call.run(session, 0).density, 0.25, 1e-6);
  EXPECT_NEAR(call.run(session, 1).density, 0.1, 1e-6);
}

TEST(SignalBudget, ACalibrationMapsTheSignal) {
  const tests::TemporaryFolder folder;
  BudgetCalibration calibration;
  calibration.tokens = 1280;
  calibration.experts[0] = BudgetCalibration::Expert{.map = {{-100.0, 0.0}, {0.8, 0.8}}, .points = 2};
  calibration.save(folder / "b.json");
  const std::string map = R"({"map":")" + (folder / "b.json") + "\"}";
  Call call(1280);
  std::vector<std::string> codes;
  AttentionSession session(config(map), [&](const Diagnostic& d) { codes.emplace_back(d.code); });
  call.run(session, 0);
  EXPECT_NEAR(call.run(session, 1).density, 0.2, 1e-6);
  EXPECT_TRUE(codes.empty());
  Call shorter(640);
  shorter.run(session, 2);
  shorter.run(session, 3);
  shorter.run(session, 4);
  EXPECT_THAT(codes, testing::ElementsAre("budget.other_length"));
  call.run(session, 0, 0, Branch::conditional, 1);
  EXPECT_THROW(call.run(session, 1, 0, Branch::conditional, 1), Error);  // not calibrated
  EXPECT_THROW(AttentionSession(config(R"({"map":"nothing.json"})")), Error);
  calibration.tile_q = 64;
  calibration.save(folder / "b.json");
  EXPECT_THROW(AttentionSession{config(map)}, Error);  // sparsity in tiles of another size
}

TEST(SignalBudget, Configuration) {
  const std::string json = to_json(config(R"({"mass":0.9,"mean_keep":0.25})"));
  EXPECT_THAT(json, HasSubstr(R"("budget":{"map":"free","mass":0.9,"between":0.6,"min_keep":0.02,"max_keep":1.0,"mean_keep":0.25})"));
  EXPECT_EQ(to_json(parse_attention_config(json)), json);
  EXPECT_THAT(to_json(parse_attention_config("mean_pool")), testing::Not(HasSubstr("\"budget\":")));
  const auto refuses = [](const std::string& text, const char* what) {
    try {
      parse_attention_config(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(what));
    }
  };
  refuses(R"({"method":"dense","budget":{}})", "unknown key \"budget\": method dense takes");
  AttentionConfig dense;
  dense.budget.emplace();
  EXPECT_THAT(tests::message_of([&] { dense.validate(); }), HasSubstr("budget: expected a method with budgets per head, got dense"));
  refuses(R"({"method":"subblock","budgets":"x.json","budget":{}})", "got both");
  refuses(R"({"method":"subblock","budget":{"mass":2}})", "budget.mass");
  refuses(R"({"method":"subblock","budget":{"mas":2}})", "unknown key \"budget.mas\"");
  refuses(R"({"method":"subblock","budget":"free"})", "budget: expected an object");
}

}  // namespace
}  // namespace winnow
