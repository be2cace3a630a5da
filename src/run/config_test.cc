// The configuration's JSON form: what it accepts, and that every refusal names its key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/message_of.h"
#include "winnow/error.h"
#include "winnow/session.h"

namespace winnow {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string error_of(const std::string& text) {
  try {
    parse_attention_config(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted: " + text;
}

TEST(Config, NamesStandForDefaults) {
  EXPECT_TRUE(std::holds_alternative<Dense>(parse_attention_config("dense").method));
  const AttentionConfig config = parse_attention_config("mean_pool");
  const auto& options = std::get<MeanPool>(config.method);
  EXPECT_EQ(options.cdf, MeanPool::kDefaultCdf);
  EXPECT_TRUE(options.neighbors);
  EXPECT_TRUE(options.means);
  EXPECT_STREQ(config.method_name(), "mean_pool");
  EXPECT_TRUE(std::holds_alternative<SkipSoftmax>(parse_attention_config("skip_softmax").method));
}

TEST(Config, AnEnumeratorThatDoesNotExistIsNotWritten) {
  AttentionConfig config = parse_attention_config("mean_pool");
  config.tokens.token_order = static_cast<TokenOrder>(7);
  EXPECT_THAT(tests::message_of([&] { static_cast<void>(to_json(config)); }),
              HasSubstr("expected one of the 3 enumerators from auto to cubes, got the number 7"));
}

TEST(Config, NamesWithoutUsableDefaultsSayWhatTheyNeed) {
  EXPECT_THAT(error_of("oracle"), AllOf(HasSubstr("cdf"), HasSubstr("density")));
  EXPECT_THAT(error_of("plan"), HasSubstr("path"));
}

TEST(Config, PublishedSnippetsAreAcceptedVerbatim) {
  const AttentionConfig config = parse_attention_config(R"({"method":"skip_softmax","threshold":1e-4})");
  EXPECT_EQ(std::get<SkipSoftmax>(config.method).threshold, 1e-4F);
  const AttentionConfig subblock = parse_attention_config(
      R"({"sparsity": 0.75, "n_k": 4, "n_q": 4, "skip_first_steps": 10, "skip_first_layers": 0, "min_seq_len": 4096})");
  const auto& options = std::get<SubBlock>(subblock.method);
  EXPECT_EQ(options.sparsity, 0.75F);
  EXPECT_EQ(options.n_k, 4);
  EXPECT_EQ(options.n_q, 4);
  EXPECT_TRUE(options.neighbors);
  EXPECT_EQ(subblock.gate.skip_first_steps, 10);
  EXPECT_EQ(subblock.gate.skip_first_layers, 0);
  EXPECT_EQ(subblock.gate.min_seq_len, 4096);
  EXPECT_EQ(std::get<SubBlock>(parse_attention_config(R"({"sparsity": 0.85})").method).sparsity, 0.85F);
  const AttentionConfig target = parse_attention_config(R"({"method":"skip_softmax","target_sparsity":0.5,"disabled_until_timestep":0.8})");
  EXPECT_EQ(std::get<SkipSoftmax>(target.method).target_sparsity, 0.5F);
  EXPECT_FALSE(std::get<SkipSoftmax>(target.method).threshold.has_value());
  EXPECT_EQ(target.gate.disabled_until_timestep, 0.8);
}

TEST(Config, AnObjectWithoutAMethodIsTheOnlyOneThatTakesItsKeys) {
  const AttentionConfig config = parse_attention_config(R"({"sparsity":0.5,"neighbors":false,"skip_first_steps":2})");
  EXPECT_EQ(std::get<SubBlock>(config.method).sparsity, 0.5F);
  EXPECT_EQ(config.gate.skip_first_steps, 2);
  EXPECT_THAT(error_of(R"({"cdf":0.75})"), AllOf(HasSubstr("method"), HasSubstr("got nothing")));  // mean_pool or oracle
  EXPECT_THAT(error_of(R"({"skip_first_steps":2})"), HasSubstr("method"));
}

TEST(Config, EveryKey) {
  const AttentionConfig config = parse_attention_config(
      R"( {"method": "mean_pool", "cdf": 0.75, "neighbors": false, "means": false, "skip_first_steps": 3, "skip_first_layers": 1,
          "min_seq_len": 8589934592, "disabled_until_timestep": 1, "executor": "reference"})");
  const auto& options = std::get<MeanPool>(config.method);
  EXPECT_EQ(options.cdf, 0.75F);
  EXPECT_FALSE(options.neighbors);
  EXPECT_FALSE(options.means);
  EXPECT_EQ(config.gate.skip_first_steps, 3);
  EXPECT_EQ(config.gate.skip_first_layers, 1);
  EXPECT_EQ(config.gate.min_seq_len, std::int64_t{1} << 33);
  EXPECT_EQ(config.gate.disabled_until_timestep, 1.0);
  EXPECT_EQ(config.executor, "reference");
  EXPECT_EQ(std::get<Oracle>(parse_attention_config(R"({"method":"oracle","density":0.25,"means":true})").method).density, 0.25F);
  EXPECT_EQ(std::get<FixedPlan>(parse_attention_config(R"({"method":"plan","path":"a b.st"})").method).path, "a b.st");
}

TEST(Config, ToJsonPrintsEveryKeyAndReadsBack) {
  for (const char* text : {R"({"method":"dense"})", R"({"method":"mean_pool","cdf":0.7,"disabled_until_timestep":0.8})",
                           R"({"method":"mean_pool","density":0.25})", R"({"method":"subblock","sparsity":0.9,"budgets":"a.json"})",
                           R"({"method":"oracle","cdf":0.95})", R"({"method":"skip_softmax","threshold":1e-4,"min_seq_len":5})",
                           R"({"method":"skip_softmax"})", R"({"method":"skip_softmax","target_sparsity":0.25,"calibration":"a b.json"})",
                           R"({"method":"plan","path":"x \"y\"","block_q":128,"block_k":64,"means":true})"}) {
    const std::string json = to_json(parse_attention_config(text));
    EXPECT_EQ(to_json(parse_attention_config(json)), json);
    EXPECT_EQ(json.find('\n'), std::string::npos);
  }
  EXPECT_EQ(to_json(parse_attention_config(R"({"method":"mean_pool","cdf":0.7})")),
            R"({"method":"mean_pool","cdf":0.7,"density":0.0,"neighbors":true,"means":true,"budgets":"","skip_first_steps":0,)"
            R"("skip_first_fraction":0.0,)"
            R"("skip_first_layers":0,"dense_layers":[],"min_seq_len":0,"disabled_until_timestep":null,"experts":{},"branches":{},)"
            R"("token_order":"raster","cube":[4,4,4],"unknown_positions":"dense","executor":"","profile":""})");
}

TEST(Config, TokenOrder) {
  const AttentionConfig config =
      parse_attention_config(R"({"method":"dense","token_order":"cubes","cube":[2,8,4],"unknown_positions":"error"})");
  EXPECT_EQ(config.tokens.token_order, TokenOrder::cubes);
  EXPECT_EQ(config.tokens.cube, (std::array{2, 8, 4}));
  EXPECT_EQ(config.tokens.unknown_positions, UnknownPositions::error);
  EXPECT_THAT(error_of(R"({"method":"dense","token_order":"hilbert"})"), HasSubstr("token_order: expected one of auto, raster, cubes"));
  EXPECT_THAT(error_of(R"({"method":"dense","token_order":1})"), HasSubstr("token_order"));
  EXPECT_THAT(error_of(R"({"method":"dense","cube":[4,4]})"), HasSubstr("cube: expected 3 integers, got [4,4]"));
  EXPECT_THAT(error_of(R"({"method":"dense","cube":[4,0,4]})"), HasSubstr("cube"));
  EXPECT_THAT(error_of(R"({"method":"dense","unknown_positions":"guess"})"), HasSubstr("unknown_positions"));
}

// "Required argument without default": everything but a few named inputs has one.
TEST(Config, MinimalCallsHaveCompleteDefaults) {
  for (const char* text : {"dense", "mean_pool", "skip_softmax", R"({"method":"mean_pool","experts":{}})",
                           R"({"method":"dense","branches":{"conditional":{}}})"}) {
    EXPECT_NO_THROW(AttentionSession{parse_attention_config(text)}) << text;
  }
}

TEST(Config, OverridesPerExpertAndBranch) {
  const char* text = R"({"method":"mean_pool","skip_first_fraction":0.2,"dense_layers":[0,39],"disabled_until_timestep":0.9,)"
                     R"("experts":{"low":{"skip_first_fraction":0.0,"disabled_until_timestep":null}},)"
                     R"("branches":{"unconditional":{"dense_layers":[],"min_seq_len":7,"skip_first_steps":1,"skip_first_layers":2}}})";
  const AttentionConfig config = parse_attention_config(text);
  const GateOptions& gate = config.gate;
  EXPECT_EQ(gate.skip_first_fraction, 0.2F);
  EXPECT_THAT(gate.dense_layers, testing::ElementsAre(0, 39));
  EXPECT_EQ(gate.experts.high, GateOverride{});
  EXPECT_EQ(gate.experts.low.skip_first_fraction, 0.0F);
  ASSERT_TRUE(gate.experts.low.disabled_until_timestep.has_value());
  EXPECT_FALSE(gate.experts.low.disabled_until_timestep->has_value());
  EXPECT_FALSE(gate.experts.low.min_seq_len.has_value());
  EXPECT_EQ(gate.branches.unconditional.dense_layers, std::vector<int>{});
  EXPECT_EQ(gate.branches.unconditional.min_seq_len, 7);
  const std::string json = to_json(config);
  EXPECT_THAT(json, HasSubstr(R"("experts":{"low":{"skip_first_fraction":0.0,"disabled_until_timestep":null}})"));
  EXPECT_EQ(parse_attention_config(json).gate.branches, gate.branches);
  EXPECT_EQ(parse_attention_config(json).gate.experts, gate.experts);
  EXPECT_EQ(to_json(parse_attention_config(json)), json);
}

TEST(Config, UnknownKeysListTheKnownOnes) {
  EXPECT_THAT(error_of(R"({"method":"mean_pool","cfd":0.5})"),
              AllOf(HasSubstr("\"cfd\""), HasSubstr("mean_pool takes method, cdf, density, neighbors, means, budgets, skip_first_steps")));
  EXPECT_THAT(error_of(R"({"method":"dense","cdf":0.5})"), HasSubstr("\"cdf\""));  // of another method
  for (const std::string method : {"dense", "window", "skip_softmax", "plan"}) {
    EXPECT_THAT(error_of(R"({"method":")" + method + R"(","x":1})"), AllOf(HasSubstr(method + " takes"), Not(HasSubstr("budget"))));
  }
  EXPECT_THAT(error_of(R"({"method":"sol","x":1})"), HasSubstr(", budget, executor"));
  EXPECT_THAT(error_of(R"({"method":"dense","experts":{"middle":{}}})"),
              AllOf(HasSubstr("\"experts.middle\""), HasSubstr("experts takes high, low")));
  EXPECT_THAT(error_of(R"({"method":"dense","experts":{"low":{"executor":"reference"}}})"),
              AllOf(HasSubstr("\"experts.low.executor\""), HasSubstr("skip_first_steps")));
}

TEST(Config, WrongValuesNameTheirKey) {
  const struct {
    const char* key;
    const char* text;
  } cases[] = {
      {"method", R"({"method":"mean-pool"})"},
      {"method", R"({"method":3})"},
      {"method", R"({"cdf":0.5})"},
      {"cdf", R"({"method":"mean_pool","cdf":0})"},
      {"cdf", R"({"method":"mean_pool","cdf":1.01})"},
      {"cdf", R"({"method":"mean_pool","cdf":"0.5"})"},
      {"cdf", R"({"method":"mean_pool","cdf":null})"},
      {"cdf", R"({"method":"mean_pool","cdf":1e300})"},
      {"neighbors", R"({"method":"mean_pool","neighbors":1})"},
      {"density", R"({"method":"mean_pool","cdf":0.5,"density":0.5})"},
      {"density", R"({"method":"mean_pool","density":1.5})"},
      {"sparsity", R"({"method":"subblock","sparsity":1})"},
      {"tau", R"({"method":"sol","tau":1e39})"},
      {"theta", R"({"method":"cosine_gate","theta":2})"},
      {"n_k", R"({"method":"subblock","n_k":3})"},
      {"n_q", R"({"method":"subblock","n_q":16})"},
      {"means", R"({"method":"oracle","cdf":0.5,"means":"yes"})"},
      {"density", R"({"method":"oracle","cdf":0.5,"density":0.5})"},
      {"density", R"({"method":"oracle","density":2})"},
      {"threshold", R"({"method":"skip_softmax","threshold":1})"},
      {"threshold", R"({"method":"skip_softmax","threshold":-1e-3})"},
      {"threshold", R"({"method":"skip_softmax","threshold":1e-3,"target_sparsity":0.5})"},
      {"target_sparsity", R"({"method":"skip_softmax","target_sparsity":0})"},
      {"target_sparsity", R"({"method":"skip_softmax","target_sparsity":1})"},
      {"calibration", R"({"method":"skip_softmax","threshold":1e-3,"calibration":"x.json"})"},
      {"calibration", R"({"method":"skip_softmax","calibration":"x.json"})"},
      {"path", R"({"method":"plan","path":7})"},
      {"path", R"({"method":"plan"})"},
      {"skip_first_steps", R"({"method":"dense","skip_first_steps":-1})"},
      {"skip_first_steps", R"({"method":"dense","skip_first_steps":1.5})"},
      {"skip_first_steps", R"({"method":"dense","skip_first_steps":2147483648})"},
      {"skip_first_layers", R"({"method":"dense","skip_first_layers":true})"},
      {"min_seq_len", R"({"method":"dense","min_seq_len":18446744073709551615})"},
      {"disabled_until_timestep", R"({"method":"dense","disabled_until_timestep":1.5})"},
      {"disabled_until_timestep", R"({"method":"dense","disabled_until_timestep":"0.8"})"},
      {"executor", R"({"method":"dense","executor":[]})"},
      {"skip_first_fraction", R"({"method":"dense","skip_first_fraction":1.5})"},
      {"skip_first_fraction", R"({"method":"dense","skip_first_fraction":null})"},
      {"dense_layers", R"({"method":"dense","dense_layers":3})"},
      {"dense_layers", R"({"method":"dense","dense_layers":[1,-1]})"},
      {"dense_layers", R"({"method":"dense","dense_layers":[1.5]})"},
      {"experts", R"({"method":"dense","experts":[]})"},
      {"experts.high", R"({"method":"dense","experts":{"high":2}})"},
      {"experts.high.min_seq_len", R"({"method":"dense","experts":{"high":{"min_seq_len":null}}})"},
      {"branches.conditional.disabled_until_timestep", R"({"method":"dense","branches":{"conditional":{"disabled_until_timestep":7}}})"},
      {"cdf", R"({"method":"mean_pool","cdf":0.5,"cdf":0.6})"},  // twice
      {"token_order: expected cubes or auto beside a cube, got raster", R"({"method":"dense","cube":[2,8,8]})"},
      {"target_sparsity: expected a number in (0,1), got -1e-09", R"({"method":"skip_softmax","target_sparsity":-1e-9})"},
  };
  for (const auto& [key, text] : cases) EXPECT_THAT(error_of(text), AllOf(HasSubstr(key), HasSubstr("[config]"))) << text;
}

TEST(Config, TextThatIsNotOneObjectIsRefused) {
  for (const char* text :
       {"", "  ", "{", "{}", R"({"method":"dense"} x)", R"({"method":"dense",})", R"({"method":"mean_pool","cdf":1e999})",
        R"({"method":"mean_pool","cdf":NaN})", "\x7b\xff\x7d", "[1]", "no_such_method", "/"}) {
    EXPECT_THAT(error_of(text), HasSubstr("[config]")) << text;
  }
  EXPECT_THAT(error_of("mean-pool"), AllOf(HasSubstr("mean_pool"), HasSubstr("mean-pool")));
}

TEST(Config, Files) {
  const auto path = std::filesystem::temp_directory_path() / ("winnow_config_" + std::to_string(::getpid()) + ".json");
  std::ofstream(path) << "\n{\"method\": \"mean_pool\", \"cdf\": 0.5}\n";
  EXPECT_EQ(std::get<MeanPool>(parse_attention_config(path.string()).method).cdf, 0.5F);
  std::ofstream(path) << "[]";
  EXPECT_THAT(error_of(path.string()), HasSubstr("object"));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace winnow
