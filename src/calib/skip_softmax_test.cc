// Calibration: gaps to sparsity to a line, the file and its refusals, ModelOpt's export.
#include "calib/skip_softmax.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/support/message_of.h"
#include "winnow/error.h"

namespace winnow {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("winnow_calib_" + std::to_string(::getpid()))) { fs::create_directories(path_); }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
    return (path_ / name).string();
  }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

std::string error_of(const std::string& path) {
  try {
    SkipCalibration::load(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted " + path;
}

// Gaps whose sparsity is exactly (ln f - ln a) / b at every factor f.
std::vector<float> gaps_of_line(double a, double b, std::int64_t keys, int n) {
  std::vector<float> gaps;
  for (int i = 0; i < n; ++i) {
    const double factor = a * std::exp(b * (i + 0.5) / n);
    gaps.push_back(static_cast<float>(std::log2(factor / static_cast<double>(keys))));
  }
  return gaps;
}

TEST(SkipGaps, SparsityCountsWhatAThresholdSkips) {
  SkipGaps gaps;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  gaps.add(std::vector<float>{-8.0F, -4.0F, -1.0F, 0.0F, 3.0F, kInf, -kInf, -2.0F}, 1024);
  EXPECT_EQ(gaps.count(), 8);
  EXPECT_DOUBLE_EQ(gaps.sparsity(1024.0 * std::exp2(-9.0)), 1.0 / 8.0);  // the granule without any mass
  EXPECT_DOUBLE_EQ(gaps.sparsity(1024.0 * std::exp2(-3.0)), 3.0 / 8.0);
  EXPECT_DOUBLE_EQ(gaps.sparsity(1024.0), 5.0 / 8.0);
  EXPECT_DOUBLE_EQ(gaps.sparsity(1e9), 5.0 / 8.0);  // threshold is clamped to 1
}

TEST(SkipGaps, FitFindsTheLine) {
  SkipGaps gaps;
  gaps.add(gaps_of_line(0.3, 7.0, 8192, 5000), 8192);
  const SkipFit fit = gaps.fit();
  EXPECT_NEAR(fit.a, 0.3, 0.02);
  EXPECT_NEAR(fit.b, 7.0, 0.05);
  EXPECT_GT(fit.r2, 0.999);
  EXPECT_NEAR(fit.lowest, 0.05, 0.03);
  EXPECT_NEAR(fit.highest, 0.9, 0.03);
}

TEST(SkipGaps, NothingToSkipIsAnError) {
  EXPECT_THROW(SkipGaps().fit(), Error);
  SkipGaps gaps;
  gaps.add(std::vector<float>(1000, 0.5F), 4096);
  EXPECT_THROW(gaps.fit(), Error);
}

TEST(SkipCalibrationFile, SavesAndLoads) {
  const Folder folder;
  SkipCalibration calibration;
  calibration.experts.resize(2);
  calibration.experts[1] = SkipCalibration::Expert{.a = 3.25, .b = 12.5, .r2 = 0.99, .lowest = 0.1, .highest = 0.4};
  calibration.executor = "amx_bf16";
  calibration.rows = 32;
  calibration.keys = 64;
  calibration.model = "0123456789abcdef";
  calibration.tokens = 4752;
  const std::string path = folder.file("c.json", "");
  calibration.save(path);
  const SkipCalibration loaded = SkipCalibration::load(path);
  EXPECT_FALSE(loaded.experts.at(0).has_value());
  EXPECT_DOUBLE_EQ(loaded.factor(1, 0.2), 3.25 * std::exp(12.5 * 0.2));
  EXPECT_EQ(loaded.rows, 32);
  EXPECT_EQ(loaded.model, calibration.model);
  EXPECT_THROW(loaded.factor(0, 0.2), Error);    // no such expert
  EXPECT_THROW(loaded.factor(1, 0.05), Error);   // below the fitted range
  EXPECT_THROW(loaded.factor(1, 0.401), Error);  // above
  SkipCalibration measured = loaded;
  measured.experts[1]->lowest = 0.05001973943939992;
  measured.experts[1]->highest = 0.15811236127560643;
  const double target = double{0.2F};
  EXPECT_THAT(tests::message_of([&] { static_cast<void>(measured.factor(1, target)); }),
              testing::HasSubstr("expected a number from 0.0501 to 0.1581, the fitted range of the low-noise expert, got 0.2"));
  EXPECT_THROW(loaded.factor(2, 0.2), Error);
}

TEST(SkipCalibrationFile, RefusesWhatItDoesNotKnow) {
  const Folder folder;
  const auto text = [](const std::string& changed, const std::string& experts) {
    return R"({"format":"winnow.skip_softmax_calibration","version":1,"model":"","tokens":100,)"
           R"("executor":{"name":"x","rows":32,"keys":64,"order":"ascending"})" +
           changed + R"(,"experts":{)" + experts + "}}";
  };
  const std::string good = R"("high":{"a":1,"b":2,"r2":0.9,"lowest_sparsity":0.1,"highest_sparsity":0.5})";
  EXPECT_NO_THROW(SkipCalibration::load(folder.file("good.json", text("", good))));
  EXPECT_THAT(error_of(folder.file("1.json", text(R"(,"extra":1)", good))), HasSubstr("\"extra\""));
  EXPECT_THAT(error_of(folder.file("2.json", text("", R"("middle":{})"))), HasSubstr("\"middle\""));
  EXPECT_THAT(error_of(folder.file("3.json", text("", R"("high":{"a":0,"b":2,"r2":0.9,"lowest_sparsity":0.1,"highest_sparsity":0.5})"))),
              AllOf(HasSubstr("high"), HasSubstr("a: expected")));
  EXPECT_THAT(error_of(folder.file("4.json", R"({"format":"other"})")), HasSubstr("format"));
  EXPECT_THAT(error_of(folder.file("5.json", "[]")), HasSubstr("object"));
  EXPECT_THAT(error_of(folder.path() + "/none.json"), HasSubstr("none.json"));
}

// As NVIDIA ModelOpt writes it into a component's config.json.
TEST(ModelOpt, SparseAttentionConfigIsImportedAsItIs) {
  const Folder folder;
  const std::string high =
      R"x({"_class_name":"WanTransformer3DModel","sparse_attention_config":{"producer":{"name":"modelopt"},"config_groups":{)x"
      R"x("group_0":{"algorithm":"sparse_softmax","sparsity_n":2},"group_1":{"algorithm":"skip_softmax","targets":["WanAttention"],)x"
      R"x("threshold_scale_factor":{"formula":"a * exp(b * target_sparsity)","prefill":{"a":2142.7334009837796,"b":4.282667871834358}},)x"
      R"x("target_sparsity":{"prefill":0.5},"initial_disabled_steps":4,"ignore":["blocks.0.attn1","transformer.blocks.3*.attn1","*attn2"]}}}})x";
  const std::string low =
      R"x({"sparse_attention_config":{"config_groups":{"group_0":{"algorithm":"skip_softmax","threshold_scale_factor":)x"
      R"x({"formula":"exp(log_a + b * target_sparsity)","coefficients":{"log_a":5.75,"b":6.166472427782809}}}}}})x";
  folder.file("transformer/config.json", high);
  folder.file("transformer_2/config.json", low);
  EXPECT_EQ(find_skip_calibration(folder.path()), folder.path());
  const SkipCalibration calibration = SkipCalibration::load(folder.path());
  EXPECT_EQ(calibration.rows, 0);  // not stated
  EXPECT_NEAR(calibration.factor(0, 0.5) / 32760.0, 0.56, 0.005);
  EXPECT_NEAR(calibration.factor(1, 0.5), std::exp(5.75 + 6.166472427782809 * 0.5), 1e-6);
  EXPECT_EQ(calibration.expert(0).dense_steps, 4);
  const std::vector<int>& layers = calibration.expert(0).dense_layers;
  ASSERT_GE(layers.size(), 12U);
  EXPECT_THAT(std::vector<int>(layers.begin(), layers.begin() + 4), ElementsAre(0, 3, 30, 31));
  EXPECT_TRUE(calibration.expert(1).dense_layers.empty());
  const SkipCalibration both =
      SkipCalibration::load(folder.file("both.json", R"({"transformer":)" + high + R"(,"transformer_2":)" + low + "}"));
  EXPECT_EQ(both.factor(1, 0.3), calibration.factor(1, 0.3));
  const SkipCalibration one = SkipCalibration::load(folder.path() + "/transformer/config.json");
  EXPECT_EQ(one.factor(0, 0.3), calibration.factor(0, 0.3));
  EXPECT_THROW(one.factor(1, 0.3), Error);
}

TEST(ModelOpt, OtherFormulasAndGroupsAreRefused) {
  const Folder folder;
  const auto config = [](const std::string& group) { return R"({"config_groups":{"g":)" + group + "}}"; };
  EXPECT_THAT(error_of(folder.file("1.json", config(R"({"algorithm":"vsa"})"))), HasSubstr("skip_softmax"));
  EXPECT_THAT(
      error_of(folder.file(
          "2.json",
          config(R"x({"algorithm":"skip_softmax","threshold_scale_factor":{"formula":"a*target_sparsity**b","prefill":{"a":1,"b":2}}})x"))),
      HasSubstr("formula"));
  EXPECT_THAT(error_of(folder.file("3.json", config(R"({"algorithm":"skip_softmax"})"))), HasSubstr("threshold_scale_factor"));
}

TEST(ModelFingerprint, ChangesWithTheWeights) {
  const Folder folder;
  folder.file("transformer/a.safetensors", std::string(5000, 'x'));
  const std::string before = model_fingerprint(folder.path());
  EXPECT_EQ(before.size(), 16U);
  EXPECT_EQ(model_fingerprint(folder.path()), before);
  folder.file("transformer/a.safetensors", std::string(4999, 'x') + "y");
  EXPECT_NE(model_fingerprint(folder.path()), before);
}

}  // namespace
}  // namespace winnow
