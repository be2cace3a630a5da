// The break-even rule: artificial profiles, and what sessions make of them.
#include "run/break_even.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/random.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/variable.h"
#include "winnow/error.h"
#include "winnow/session.h"
#include "winnow/workspace.h"

namespace winnow {
namespace {

using testing::HasSubstr;

// Attention: 1 ns a product. Planning mean_pool: `planning` seconds a call.
CostProfile profile_of(double planning) {
  CostProfile profile = CostProfile::of_this_machine();
  profile.executors.push_back(
      {"scalar_f32", {.per_product = 1e-9}, {{"mean_pool", {.per_call = planning}}, {"subblock", {.per_call = planning}}}});
  return profile;
}

PlanGeometry square(std::int64_t tokens) { return {.B = 1, .H = 1, .Sq = tokens, .Sk = tokens}; }

TEST(BreakEven, DependsOnWhatTheDensitySaves) {
  // Dense 512 x 512 x 16 products: 4.2 ms; at density 1/4 means included (1/64 of the rest) 1.1 ms.
  const double saved = 512.0 * 512 * 16 * 1e-9 * 0.75 * (1 - 1.0 / 64);
  const MeanPool quarter{.density = 0.25F};
  EXPECT_TRUE(BreakEven(profile_of(0.99 * saved), quarter).pays(0, square(512), 16, 1, "scalar_f32", 0));
  EXPECT_FALSE(BreakEven(profile_of(1.01 * saved), quarter).pays(0, square(512), 16, 1, "scalar_f32", 0));
  EXPECT_FALSE(BreakEven(profile_of(0.99 * saved), quarter).pays(0, square(256), 16, 1, "scalar_f32", 0));
  EXPECT_FALSE(BreakEven(profile_of(0.99 * saved), quarter).pays(0, square(512), 16, 1, "scalar_f32", 0.5))
      << "a budget replaces the density";
  EXPECT_TRUE(BreakEven(profile_of(0.99 * saved), SubBlock{.sparsity = 0.75F}).pays(0, square(512), 16, 1, "scalar_f32", 0));
}

TEST(BreakEven, LearnsTheDensityOfACdf) {
  const double dense = 512.0 * 512 * 16 * 1e-9;
  BreakEven rule(profile_of(0.4 * dense), MeanPool{});
  EXPECT_TRUE(rule.pays(0, square(512), 16, 1, "scalar_f32", 0)) << "half is assumed";
  rule.saw(0, 1000, 0.8);
  EXPECT_FALSE(rule.pays(0, square(512), 16, 1, "scalar_f32", 0));
  rule.saw(0, 3000, 0.2);
  EXPECT_TRUE(rule.pays(0, square(512), 16, 1, "scalar_f32", 0)) << "0.35 of this step's pairs";
  rule.saw(1, 1000, 1.0);
  EXPECT_FALSE(rule.pays(2, square(512), 16, 1, "scalar_f32", 0)) << "the last step with a sparse call counts";
  EXPECT_FALSE(rule.pays(8, square(512), 16, 1, "scalar_f32", 0));
  EXPECT_TRUE(rule.pays(9, square(512), 16, 1, "scalar_f32", 0)) << "it looks again";
  EXPECT_TRUE(rule.pays(0, square(512), 16, 1, "scalar_f32", 0)) << "another run";
  rule.reset();
  EXPECT_TRUE(rule.pays(0, square(512), 16, 1, "scalar_f32", 0));
}

TEST(BreakEven, KnowsOnlyWhatWasMeasured) {
  const CostProfile never = profile_of(1e3);
  EXPECT_FALSE(BreakEven(never, MeanPool{}).pays(0, square(4096), 16, 1, "scalar_f32", 0));
  EXPECT_TRUE(BreakEven(never, MeanPool{}).pays(0, square(4096), 16, 1, "amx_bf16", 0));
  EXPECT_TRUE(BreakEven(never, Oracle{.density = 0.5F}).pays(0, square(4096), 16, 1, "scalar_f32", 0));
}

class BreakEvenSession : public tests::FolderTest {
 protected:
  void SetUp() override {
    std::uint64_t stream = 0;
    for (const Tensor* t : {&q, &k, &v}) fill_normal({t->as<float>(), static_cast<std::size_t>(t->numel())}, 5, stream++);
  }
  AttentionConfig config(double planning) {
    profile_of(planning).save(path("profile.json"));
    AttentionConfig made;
    made.method = MeanPool{.density = 0.25F};
    made.executor = "scalar_f32";
    made.profile = path("profile.json");
    return made;
  }
  CallReport run(AttentionSession& session, const StepContext& context = {}) { return session.attend(context, q, k, v, out, ws); }
  std::vector<float> result() const { return {out.as<float>(), out.as<float>() + out.numel()}; }

  Tensor q{DType::f32, {1, 640, 2, 16}}, k{DType::f32, {1, 640, 2, 16}}, v{DType::f32, {1, 640, 2, 16}}, out{DType::f32, {1, 640, 2, 16}};
  Workspace ws;
};

TEST_F(BreakEvenSession, BelowItCallsAreDenseWithThatReason) {
  AttentionConfig dense;
  dense.executor = "scalar_f32";
  AttentionSession exact(dense);
  run(exact);
  const std::vector<float> expected = result();

  AttentionSession below(config(1e3));
  const CallReport report = run(below);
  EXPECT_EQ(report.reason, DenseReason::break_even);
  EXPECT_EQ(report.density, 1.0);
  EXPECT_EQ(result(), expected);
  EXPECT_EQ(below.totals().by_reason[static_cast<std::size_t>(DenseReason::break_even)], 1);

  AttentionSession above(config(0.0));
  EXPECT_EQ(run(above).reason, DenseReason::none);
  EXPECT_NE(result(), expected);
}

TEST_F(BreakEvenSession, SeesTheDensityThatABudgetAsksFor) {
  // What density 1/4 saves pays for planning; what 0.9 saves does not.
  AttentionConfig budgeted = config(0.4 * 2 * 640.0 * 640 * 16 * 1e-9);
  budgeted.budget = SignalBudget{.min_keep = 0.9F, .max_keep = 0.9F};
  AttentionSession session(budgeted);
  EXPECT_EQ(run(session).reason, DenseReason::none) << "no signal yet: the method's own density";
  const CallReport second = run(session);
  EXPECT_EQ(second.reason, DenseReason::break_even);
  EXPECT_FALSE(second.signal_budget);
  budgeted.budget = SignalBudget{.min_keep = 0.1F, .max_keep = 0.1F};
  AttentionSession sparser(budgeted);
  run(sparser);
  EXPECT_TRUE(run(sparser).signal_budget);
}

TEST_F(BreakEvenSession, DenseCallsKeepPaddingAndDocumentsOut) {
  const std::int64_t documents[] = {0, 300, 640};
  StepContext context;
  context.documents = documents;
  AttentionConfig dense;
  dense.executor = "scalar_f32";
  AttentionSession exact(dense);
  run(exact, context);
  const std::vector<float> expected = result();
  AttentionSession below(config(1e3));
  EXPECT_EQ(run(below, context).reason, DenseReason::break_even);
  EXPECT_EQ(result(), expected);
}

TEST_F(BreakEvenSession, GatesComeFirst) {
  AttentionConfig gated = config(1e3);
  gated.gate.min_seq_len = 1000;
  AttentionSession session(gated);
  EXPECT_EQ(run(session).reason, DenseReason::min_seq_len);
}

TEST_F(BreakEvenSession, ANamedProfileHasToFit) {
  AttentionConfig other = config(0.0);
  CostProfile made = profile_of(0.0);
  made.cpu = "abacus";
  made.save(path("profile.json"));
  try {
    AttentionSession session(other);
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cpu: expected"));
  }
  other.profile = path("missing.json");
  EXPECT_THROW(AttentionSession{other}, Error);
  other.profile = "none";
  AttentionSession without(other);
  EXPECT_EQ(run(without).reason, DenseReason::none);
}

// WINNOW_PROFILE is "none" for tests; the default place is tried here alone.
TEST_F(BreakEvenSession, AnUnfitProfileAtTheDefaultPlaceIsIgnoredAndTold) {
  AttentionConfig found = config(1e3);
  found.profile.clear();
  std::filesystem::create_directories(path("winnow"));
  std::vector<std::string> codes;
  const Diagnostics listen = [&](const Diagnostic& diagnostic) { codes.emplace_back(diagnostic.code); };
  const tests::Variable none("WINNOW_PROFILE", nullptr);
  const tests::Variable cache("XDG_CACHE_HOME", path("").c_str());
  CostProfile made = profile_of(1e3);
  made.save(path("winnow/profile.json"));
  AttentionSession below(found, listen);
  EXPECT_EQ(run(below).reason, DenseReason::break_even);
  EXPECT_TRUE(codes.empty());
  made.version = "0.0.0";
  made.save(path("winnow/profile.json"));
  AttentionSession ignoring(found, listen);
  EXPECT_EQ(run(ignoring).reason, DenseReason::none);
  EXPECT_EQ(codes, std::vector<std::string>{"profile.ignored"});
}

}  // namespace
}  // namespace winnow
