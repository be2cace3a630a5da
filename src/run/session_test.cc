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
#include "tests/support/npy.h"
#include "tests/support/temporary_folder.h"
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

std::vector<float> rows_of(const Call& call, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = call.out.view().size(2) * call.out.view().size(3);
  return {call.out.as<float>() + begin * width, call.out.as<float>() + end * width};
}

// Every document of the packed call has the rows that it has in a call of its own.
void expect_documents_alone(AttentionSession& session, const Call& packed, const std::vector<std::int64_t>& documents) {
  for (std::size_t d = 0; d + 1 < documents.size(); ++d) {
    const std::int64_t n = documents[d + 1] - documents[d];
    Call alone(n, n);
    for (const auto& [to, from] : {std::pair(&alone.q, &packed.q), {&alone.k, &packed.k}, {&alone.v, &packed.v}}) {
      std::copy_n(from->as<float>() + documents[d] * 32, n * 32, to->as<float>());
    }
    alone.run(session);
    EXPECT_EQ(rows_of(packed, documents[d], documents[d + 1]), alone.result()) << "document " << d;
  }
}

TEST(Session, PackedDocumentsAreSeparateCalls) {
  const std::vector<std::int64_t> documents = {0, 300, 340, 940};
  Call packed(940, 940);
  StepContext context;
  context.documents = documents;
  for (const GateOptions& gate : {GateOptions{}, GateOptions{.min_seq_len = 100}, GateOptions{.min_seq_len = 5000}}) {
    AttentionSession session(config_of(MeanPool{.cdf = 0.5F}, gate));
    const CallReport report = packed.run(session, context);
    EXPECT_EQ(report.reason, gate.min_seq_len == 5000 ? DenseReason::min_seq_len : DenseReason::none);
    EXPECT_EQ(report.pairs, 2.0 * (300.0 * 300 + 40 * 40 + 600 * 600));
    expect_documents_alone(session, packed, documents);
  }
}

TEST(Session, EverySelectorKeepsDocumentsApart) {
  const std::vector<std::int64_t> documents = {0, 300, 300, 333, 900};
  Call packed(900, 900);
  StepContext context;
  context.documents = documents;
  const std::vector<Method> methods = {MeanPool{.cdf = 0.5F}, SubBlock{.sparsity = 0.5F},     CosineGate{.cdf = 0.5F}, Sol{},
                                       Oracle{.cdf = 0.5F},   SkipSoftmax{.threshold = 0.05F}};
  for (const Method& method : methods) {
    SCOPED_TRACE(config_of(method).method_name());
    AttentionSession session(config_of(method));
    EXPECT_EQ(packed.run(session, context).reason, DenseReason::none);
    expect_documents_alone(session, packed, documents);
  }
  AttentionSession window(config_of(Window{}));
  EXPECT_EQ(packed.run(window, context).reason, DenseReason::unknown_positions);
}

TEST(Session, ShortDocumentsAreDenseBesideSparseOnes) {
  const std::vector<std::int64_t> documents = {0, 400, 1400};
  Call call(1400, 1400);
  StepContext context;
  context.documents = documents;
  AttentionSession dense(AttentionConfig{});
  call.run(dense, context);
  const std::vector<float> exact = call.result();
  AttentionSession session(config_of(MeanPool{.cdf = 0.3F}, {.min_seq_len = 500}));
  const CallReport report = call.run(session, context);
  EXPECT_EQ(report.reason, DenseReason::none);
  EXPECT_LT(report.density, 0.9);
  EXPECT_EQ(rows_of(call, 0, 400), std::vector(exact.begin(), exact.begin() + 400 * 32));
  EXPECT_NE(rows_of(call, 400, 1400), std::vector(exact.begin() + 400 * 32, exact.end()));
}

TEST(Session, ProtectedSpansAreExactAndPaddingIsLeftOut) {
  // 77 of text, a video of 8 x 10 x 10, 23 of padding
  const std::vector<TokenSpan> spans = {{0, 77, SpanKind::exact}, {77, 877, SpanKind::video, {8, 10, 10}}, {877, 900, SpanKind::padding}};
  Call call(900, 900);
  for (std::int64_t i = 877 * 32; i < 900 * 32; ++i) call.k.as<float>()[i] = std::nanf("");
  StepContext context;
  context.spans = spans;
  for (const TokenOrder order : {TokenOrder::automatic, TokenOrder::raster, TokenOrder::cubes}) {
    AttentionConfig config = config_of(MeanPool{.cdf = 0.3F, .means = false});
    config.tokens.token_order = order;
    AttentionConfig dense;
    dense.tokens = config.tokens;
    AttentionSession dense_session(dense);
    EXPECT_EQ(call.run(dense_session, context).pairs, 2.0 * 877 * 877);
    const std::vector<float> exact = rows_of(call, 0, 77);
    AttentionSession session(config);
    EXPECT_LT(call.run(session, context).density, 0.9);
    const std::vector<float> sparse = rows_of(call, 0, 77);
    for (std::size_t i = 0; i < exact.size(); ++i) ASSERT_NEAR(sparse[i], exact[i], 1e-5) << "text attends to everything";
    for (const float x : call.result()) ASSERT_TRUE(std::isfinite(x)) << "padding was attended to";
    for (const float x : rows_of(call, 877, 900)) ASSERT_EQ(x, 0.0F);
    EXPECT_EQ(plan_spec(config, context, call.q, call.k).key_layout->exact_tiles(0), 2);  // plans without them are invalid
  }
}

TEST(Session, UnknownPositionsAreDenseOrAnErrorBeforeAnyWork) {
  std::vector<std::string> codes;
  AttentionConfig config = config_of(MeanPool{.cdf = 0.3F});
  Call call(700, 700);
  StepContext context;
  context.grid = {6, 10, 10};  // 600 tokens: what are the other 100?
  AttentionSession session(config, [&](const Diagnostic& d) { codes.emplace_back(d.code); });
  EXPECT_EQ(call.run(session, context).reason, DenseReason::unknown_positions);
  EXPECT_EQ(call.run(session, context).density, 1.0);
  EXPECT_THAT(codes, testing::ElementsAre("tokens.unknown_positions"));
  context.grid = {7, 10, 10};
  EXPECT_EQ(call.run(session, context).reason, DenseReason::none);
  context.grid = {};
  EXPECT_EQ(call.run(session, context).reason, DenseReason::none);
  config.tokens.token_order = TokenOrder::cubes;
  AttentionSession cubes(config);
  EXPECT_EQ(call.run(cubes, context).reason, DenseReason::unknown_positions);
  config.tokens.unknown_positions = UnknownPositions::error;
  AttentionSession strict(config);
  call.out.as<float>()[0] = -7.0F;
  EXPECT_THROW(call.run(strict, context), Error);
  EXPECT_EQ(call.out.as<float>()[0], -7.0F);
  EXPECT_EQ(strict.totals().calls, 0);
}

TEST(Session, TwoResolutionsOfAsManyTokensAreNotMixedUp) {
  Call call(720, 720);
  AttentionConfig config = config_of(MeanPool{.cdf = 0.3F});
  config.tokens.token_order = TokenOrder::automatic;
  AttentionSession session(config);
  const auto run = [&](AttentionSession& s, Grid grid) {
    StepContext context;
    context.grid = grid;
    call.run(s, context);
    return call.result();
  };
  const std::vector<float> wide = run(session, {5, 9, 16});
  const std::vector<float> tall = run(session, {5, 16, 9});
  EXPECT_NE(wide, tall);
  EXPECT_EQ(run(session, {5, 9, 16}), wide);
  AttentionSession fresh(config);
  EXPECT_EQ(run(fresh, {5, 16, 9}), tall);
}

TEST(Session, CrossAttentionOfPackedDocuments) {
  const std::vector<std::int64_t> documents = {0, 100, 300};
  const std::vector<std::int64_t> texts = {0, 20, 77};
  Call call(300, 77);
  AttentionSession session(config_of(MeanPool{}));
  StepContext context;
  context.documents = documents;
  EXPECT_THROW(call.run(session, context), Error);  // the second one's text is nobody else's business
  context.key_documents = texts;
  EXPECT_EQ(call.run(session, context).reason, DenseReason::cross_attention);
  Call second(200, 57);
  std::copy_n(call.q.as<float>() + 100 * 32, 200 * 32, second.q.as<float>());
  std::copy_n(call.k.as<float>() + 20 * 32, 57 * 32, second.k.as<float>());
  std::copy_n(call.v.as<float>() + 20 * 32, 57 * 32, second.v.as<float>());
  second.run(session);
  EXPECT_EQ(rows_of(call, 100, 300), second.result());
}

TEST(Session, FixedPlansKeepDocumentsApart) {
  const auto path = std::filesystem::temp_directory_path() / ("winnow_packed_" + std::to_string(::getpid()) + ".safetensors");
  const std::vector<std::int64_t> documents = {0, 100, 256};
  Call call(256, 256, 1);
  StepContext context;
  context.documents = documents;
  PlanBuilder::from_rows(plan_geometry(call.q, call.k, {}), Skipped::drop, {{0, 1}, {2, 3}}).save(path.string());
  AttentionSession mixes(config_of(FixedPlan{path.string()}));
  EXPECT_THROW(call.run(mixes, context), Error);
  AttentionConfig config = config_of(MeanPool{.cdf = 0.5F});
  {
    const Workspace::Scope scope(call.ws);
    make_plan(call.q, call.k, plan_spec(config, context, call.q, call.k), config.method, call.ws).save(path.string());
  }
  AttentionSession fits(config_of(FixedPlan{path.string()}));
  EXPECT_EQ(call.run(fits, context).reason, DenseReason::none);
  std::filesystem::remove(path);
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

// Writes a calibration for the reference executor: granules of 128 x 64, targets 0.1 to 0.5.
std::string calibration_file(const std::string& name, int rows, double a) {
  const auto path = std::filesystem::temp_directory_path() / ("winnow_" + name + "_" + std::to_string(::getpid()) + ".json");
  std::ofstream(path)
      << R"({"format":"winnow.skip_softmax_calibration","version":1,"model":"","tokens":512,"executor":{"name":"made up","rows":)" << rows
      << R"(,"keys":64,"order":"ascending"},"experts":{"high":{"a":)" << a
      << R"(,"b":2,"r2":0.99,"lowest_sparsity":0.1,"highest_sparsity":0.5}}})";
  return path.string();
}

TEST(Session, TargetSparsityIsTheThresholdOfItsCalibration) {
  const std::string path = calibration_file("target", 128, 1.5);
  Call call(512, 512, 1);
  AttentionSession direct(config_of(SkipSoftmax{.threshold = static_cast<float>(1.5 * std::exp(2.0 * 0.25) / 512.0)}));
  AttentionSession target(config_of(SkipSoftmax{.target_sparsity = 0.25F, .calibration = path}));
  const CallReport want = call.run(direct, {}, {.executor = "reference"});
  const std::vector<float> result = call.result();
  EXPECT_DOUBLE_EQ(call.run(target, {}, {.executor = "reference"}).density, want.density);
  EXPECT_EQ(call.result(), result);
  StepContext low;
  low.expert = 1;
  EXPECT_THROW(call.run(target, low, {.executor = "reference"}), Error);                                        // not calibrated
  EXPECT_THROW(AttentionSession(config_of(SkipSoftmax{.target_sparsity = 0.6F, .calibration = path})), Error);  // outside of the range
  EXPECT_THROW(AttentionSession(config_of(SkipSoftmax{.target_sparsity = 0.25F})), Error);                      // no calibration
  std::filesystem::remove(path);
}

TEST(Session, CalibrationsOfOtherGranulesAreRefused) {
  const std::string path = calibration_file("granule", 64, 1.5);
  Call call(512, 512, 1);
  AttentionSession session(config_of(SkipSoftmax{.target_sparsity = 0.25F, .calibration = path}));
  try {
    call.run(session, {}, {.executor = "reference"});
    ADD_FAILURE() << "a calibration of another granule was used";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("128 x 64"), HasSubstr("64 x 64"), HasSubstr("made up")));
  }
  std::filesystem::remove(path);
}

TEST(Session, FactorsBeyondTheSequenceAreClampedAndTold) {
  const std::string path = calibration_file("clamp", 128, 1e6);
  std::vector<std::string> codes;
  AttentionSession session(config_of(SkipSoftmax{.target_sparsity = 0.25F, .calibration = path}),
                           [&](const Diagnostic& d) { codes.emplace_back(d.code); });
  Call call(512, 512, 1);
  call.run(session, {}, {.executor = "reference"});
  call.run(session, {}, {.executor = "reference"});
  EXPECT_THAT(codes, testing::ElementsAre("skip_softmax.clamped"));
  std::filesystem::remove(path);
}

TEST(Session, ModelOptCalibrationsStateNoGranularityAndKeepTheirLayersDense) {
  const auto path = std::filesystem::temp_directory_path() / ("winnow_modelopt_" + std::to_string(::getpid()) + ".json");
  std::ofstream(path)
      << R"({"sparse_attention_config":{"config_groups":{"group_0":{"algorithm":"skip_softmax","ignore":["blocks.2.attn1"],)"
         R"("initial_disabled_steps":1,"threshold_scale_factor":{"prefill":{"a":1.5,"b":2}}}}}})";
  std::vector<std::string> codes;
  AttentionSession session(config_of(SkipSoftmax{.target_sparsity = 0.25F, .calibration = path.string()}),
                           [&](const Diagnostic& d) { codes.emplace_back(d.code); });
  EXPECT_THAT(codes, testing::ElementsAre("calibration.no_granularity"));
  Call call(200, 200, 1);
  StepContext context;
  EXPECT_EQ(call.run(session, context).reason, DenseReason::skip_first_steps);
  context.step = 1;
  context.layer = 2;
  EXPECT_EQ(call.run(session, context).reason, DenseReason::dense_layers);
  context.layer = 3;
  EXPECT_EQ(call.run(session, context).reason, DenseReason::none);
  std::filesystem::remove(path);
}

// "Threshold set to 0" means off: dense, and no test at all.
TEST(Session, ThresholdZeroIsOff) {
  Call call(200, 200, 1);
  AttentionSession session(parse_attention_config(R"({"method":"skip_softmax","threshold":0})"));
  EXPECT_EQ(call.run(session).reason, DenseReason::requested);
}

// "No context is set": a default context is a valid one.
TEST(Session, NoContextIsAValidContext) {
  Call call(200, 200, 1);
  AttentionSession session(config_of(MeanPool{}));
  EXPECT_EQ(call.run(session, StepContext{}).reason, DenseReason::none);
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

// Another program's selector: its block mask gives what the same tiles as a plan give.
class SessionMask : public tests::FolderTest {
 protected:
  FixedPlan mask(const std::string& shape, const std::string& keep, int block_q, int block_k) const {
    std::ofstream(path("mask.npy"), std::ios::binary) << tests::npy_of_bools(shape, keep);
    return {.path = path("mask.npy"), .block_q = block_q, .block_k = block_k};
  }
};

TEST_F(SessionMask, RunsAsAPlan) {
  Call call(256, 256, 1);
  const PlanGeometry geometry = plan_geometry(call.q, call.k, {});
  PlanBuilder::from_rows(geometry, Skipped::drop, {{0, 1}, {2, 3}}).save(path("plan"));
  AttentionSession planned(config_of(FixedPlan{path("plan")}));
  call.run(planned);
  const std::vector<float> want = call.result();
  AttentionSession masked(config_of(mask("(2, 2)", {1, 0, 0, 1}, 128, 128)));
  EXPECT_DOUBLE_EQ(call.run(masked).density, 0.5);
  EXPECT_EQ(call.result(), want);
  call.run(masked);
  EXPECT_EQ(call.result(), want);
  // Blocks smaller than the executor's tiles are not rounded up: the first 64 queries see the first 64 keys, and so on.
  AttentionSession fine(config_of(mask("(1, 1, 4, 4)", {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}, 64, 64)));
  EXPECT_DOUBLE_EQ(call.run(fine).density, 0.25);
  FixedPlan means = mask("(2, 2)", {1, 0, 0, 1}, 128, 128);
  means.means = true;
  AttentionSession represented(config_of(means));
  call.run(represented);
  EXPECT_NE(call.result(), want);
}

TEST_F(SessionMask, CallsThatItDoesNotFitAreErrors) {
  AttentionSession session(config_of(mask("(3, 3)", {1, 0, 0, 0, 1, 0, 0, 0, 1}, 128, 128)));
  Call call(300, 300, 1);
  Call shorter(384, 384, 1);  // as many blocks, another length
  Call other(256, 256, 1);
  EXPECT_EQ(call.run(session).reason, DenseReason::none);
  EXPECT_EQ(shorter.run(session).reason, DenseReason::none);
  try {
    other.run(session);
    ADD_FAILURE() << "a mask of another shape was used";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("2,2]"), HasSubstr("[3,3] bool"), HasSubstr("[256,256] queries and keys")));
  }
  EXPECT_EQ(call.run(session).reason, DenseReason::none);
  StepContext context;
  const std::int64_t documents[] = {0, 100, 300};
  context.documents = documents;
  EXPECT_THROW(call.run(session, context), Error);
  FixedPlan no_size = mask("(3, 3)", {1, 0, 0, 0, 1, 0, 0, 0, 1}, 128, 0);
  EXPECT_THROW(AttentionSession(config_of(no_size)), Error);
  PlanBuilder::from_rows(plan_geometry(call.q, call.k, {}), Skipped::drop, {{0}, {0}, {0}}).save(path("plan"));
  EXPECT_THROW(AttentionSession(config_of(FixedPlan{.path = path("plan"), .block_q = 128, .block_k = 64})), Error);
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
  context = {};
  context.expert = -1;
  AttentionSession budgeted(parse_attention_config(R"({"method":"subblock","budget":{}})"));
  EXPECT_THROW(call.run(budgeted, context), Error);
  EXPECT_EQ(session.totals().calls, 0);
  EXPECT_EQ(call.ws.used_bytes(), 0U);
}

// Where a sequence contradicts itself even the steps that run dense anyway say so.
TEST(Session, ContradictionsAreErrorsInDenseCallsToo) {
  AttentionSession session(parse_attention_config(R"({"method":"mean_pool","skip_first_steps":5})"));
  Call call(100, 100);
  StepContext context;
  const TokenSpan overlapping[] = {{0, 60, SpanKind::video, {}}, {50, 100, SpanKind::exact, {}}};
  context.spans = overlapping;
  EXPECT_THROW(call.run(session, context), Error);
  constexpr std::int64_t kHuge = std::int64_t{1} << 40U;
  const TokenSpan huge[] = {{0, 100, SpanKind::video, {kHuge, kHuge, 100}}};
  context.spans = huge;
  EXPECT_THROW(call.run(session, context), Error);
  context.spans = {};
  context.grid = {kHuge, kHuge, kHuge};
  EXPECT_EQ(call.run(session, context).reason, DenseReason::skip_first_steps);
}

}  // namespace
}  // namespace winnow
