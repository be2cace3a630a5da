// winnow calibrate, as built, on winnow-tiny: the files that it writes work, and what every kind of bad input gets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli_testing.h"

namespace winnow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CliCalibrate : public tests::Cli {
 protected:
  // Of a clip that takes seconds.
  tests::Finished calibrate(std::vector<std::string> more) const {
    std::vector<std::string> words = {"calibrate", "skip-softmax", "--model",  tests::kModel, "-W",          "96",
                                      "-H",        "96",           "--frames", "9",           "--num-steps", "4"};
    words.insert(words.end(), more.begin(), more.end());
    return winnow(words);
  }
  tests::Finished generate(const std::string& attention) const {
    return winnow({"generate", "--model", tests::kModel, "-W", "96", "-H", "96", "--frames", "9", "--steps", "4", "-p",
                   "a small green ring", "--attention", attention, "-o", path("a.y4m"), "--report", path("report.json")});
  }
};

TEST_F(CliCalibrate, WritesAFileThatReachesItsTargets) {
  const tests::Finished run = calibrate({"-p", "a small green ring", "-o", path("c.json")});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("high noise"), HasSubstr("low noise"), HasSubstr("R2"), HasSubstr("c.json")));
  const auto file = nlohmann::json::parse(tests::read_file(path("c.json")));
  EXPECT_EQ(file.at("model").get<std::string>().size(), 16U);
  double lowest = 0.0;
  double highest = 1.0;
  for (const char* name : {"high", "low"}) {
    const auto& expert = file.at("experts").at(name);
    lowest = std::max(lowest, expert.at("lowest_sparsity").get<double>());
    highest = std::min(highest, expert.at("highest_sparsity").get<double>());
  }
  ASSERT_LT(lowest, highest);
  const double target = (lowest + highest) / 2.0;
  const auto setting = [&](double sparsity) {
    return nlohmann::json({{"method", "skip_softmax"}, {"target_sparsity", sparsity}, {"calibration", path("c.json")}}).dump();
  };
  const tests::Finished sparse = generate(setting(target));
  ASSERT_EQ(sparse.code, 0) << sparse.err;
  // Dropped tiles save half of their work: QK is computed, softmax and PV are not.
  const auto report = nlohmann::json::parse(tests::read_file(path("report.json")));
  EXPECT_NEAR(2.0 * (1.0 - report.at("runs").at(0).at("density").get<double>()), target, 0.05);
  const tests::Finished beyond = generate(setting(highest + 0.01));
  EXPECT_EQ(beyond.code, 1);
  EXPECT_THAT(beyond.err, HasSubstr("target_sparsity: expected a number from"));
}

TEST_F(CliCalibrate, BadInput) {
  expect_refused(calibrate({"-o", path("c.json")}), 2, "--prompt");
  expect_refused(calibrate({"-p", "a ball", "--executor", "abacus", "-o", path("c.json")}), 1, "abacus");
  expect_refused(calibrate({"-p", "a ball", "-o", path("no/such/folder/c.json")}), 1, "no/such/folder");
  std::ofstream(path("prompts.txt")) << "\n";
  const tests::Finished none = calibrate({"--prompts", path("prompts.txt"), "-o", path("c.json")});
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("expected one prompt a line"));
  std::ofstream(path("prompts.txt")) << "a red ball\na dog\n";
  const tests::Finished unknown = calibrate({"--prompts", path("prompts.txt"), "-o", path("c.json")});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("[calibrate] " + path("prompts.txt") + ":2: words that this model does not know: \"dog\""),
                                 Not(HasSubstr("denoise"))));
}

class CliCalibrateBudget : public tests::Cli {
 protected:
  tests::Finished calibrate(std::vector<std::string> more) const {
    std::vector<std::string> words = {"calibrate", "budget", "--model",  tests::kModel, "-W",      "96",
                                      "-H",        "96",     "--frames", "9",           "--steps", "6"};
    words.insert(words.end(), more.begin(), more.end());
    return winnow(words);
  }
};

TEST_F(CliCalibrateBudget, WritesAMapThatBudgetsTheHeads) {
  const tests::Finished run =
      calibrate({"-p", "a small green ring", "-o", path("b.json"), "--report", path("points.json"), "--step-stride", "2"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("1/l"), HasSubstr("isotonic"), HasSubstr("subblock"), HasSubstr("b.json")));
  const auto file = nlohmann::json::parse(tests::read_file(path("b.json")));
  EXPECT_EQ(file.at("model").get<std::string>().size(), 16U);
  const auto points = nlohmann::json::parse(tests::read_file(path("points.json"))).at("points");
  EXPECT_EQ(points.size(), 3U * 6U * 2U);
  const nlohmann::json setting = {{"method", "subblock"}, {"budget", {{"map", path("b.json")}}}};
  const tests::Finished sparse =
      winnow({"generate", "--model", tests::kModel, "-W", "96", "-H", "96", "--frames", "9", "--steps", "6", "-p", "a small green ring",
              "--attention", setting.dump(), "-o", path("a.y4m"), "--report", path("report.json")});
  ASSERT_EQ(sparse.code, 0) << sparse.err;
  EXPECT_THAT(sparse.err, Not(HasSubstr("warning")));
  EXPECT_LT(nlohmann::json::parse(tests::read_file(path("report.json"))).at("runs").at(0).at("density").get<double>(), 0.95);
}

TEST_F(CliCalibrateBudget, GoesOnAfterAnInterruption) {
  const tests::Finished nothing = calibrate({"-p", "a small green ring", "-o", path("b.json"), "--step-stride", "4", "--resume"});
  ASSERT_EQ(nothing.code, 0) << nothing.err;
  EXPECT_THAT(nothing.err, HasSubstr("nothing to take over"));
  EXPECT_FALSE(std::filesystem::exists(path("b.json.unfinished")));
  std::ofstream(path("b.json.unfinished")) << "{}";
  const tests::Finished other = calibrate({"-p", "a small green ring", "-o", path("b.json"), "--resume"});
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err, HasSubstr("b.json.unfinished: expected what an interrupted calibration has left"));
}

TEST_F(CliCalibrateBudget, BadInput) {
  expect_refused(calibrate({"-o", path("b.json")}), 2, "--prompt");
  expect_refused(winnow({"calibrate", "budget", "-o", path("b.json")}), 2, "--captures");
  expect_refused(winnow({"calibrate", "budget", "-p", "x", "-o", path("b.json")}), 2, "--prompt requires --model");
  expect_refused(winnow({"calibrate", "budget", "--captures", "c", "--frames", "9", "-o", path("b.json")}), 2, "--frames requires --model");
  expect_refused(winnow({"calibrate", "budget", "--captures", "c", "--dtype", "f32", "-o", path("b.json")}), 2, "--dtype requires --model");
  expect_refused(calibrate({"-p", "x", "-o", path("no/such/folder/b.json")}), 1, "no/such/folder");
  expect_refused(calibrate({"-p", "x", "-o", path("b.json"), "--error", "2"}), 2, "--error");
  expect_refused(calibrate({"-p", "x", "-o", path("b.json"), "--error", "nan"}), 2, "expected a number from 1e-06 to 1, got nan");
  expect_refused(calibrate({"-p", "x", "-o", path("b.json"), "--report", path("b.json")}), 1,
                 "is written both as --output and as --report");
}

class CliCalibrateMagcache : public tests::Cli {
 protected:
  tests::Finished calibrate(std::vector<std::string> more) const {
    std::vector<std::string> words = {"calibrate", "magcache", "--model",  tests::kModel, "-W",          "48",
                                      "-H",        "48",       "--frames", "9",           "--num-steps", "12"};
    words.insert(words.end(), more.begin(), more.end());
    return winnow(words);
  }
};

TEST_F(CliCalibrateMagcache, WritesRatiosThatTheCacheTakes) {
  const tests::Finished run = calibrate({"-p", "a small green ring", "-o", path("m.json")});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("high noise"), HasSubstr("unconditional"), HasSubstr("m.json")));
  const auto experts = nlohmann::json::parse(tests::read_file(path("m.json"))).at("experts");
  const std::size_t high = experts.at("high").at("conditional").size();
  EXPECT_GT(high, 2U);
  EXPECT_EQ(high + experts.at("low").at("unconditional").size(), 12U);
  EXPECT_EQ(experts.at("low").at("conditional").at(0), 1.0);
  EXPECT_NE(experts.at("high").at("conditional").at(1), experts.at("high").at("unconditional").at(1));
  const nlohmann::json setting = {{"method", "magcache"}, {"threshold_low", 1.0}, {"calibration", path("m.json")}};
  const tests::Finished cached =
      winnow({"generate", "--model", tests::kModel, "-W", "48", "-H", "48", "--frames", "9", "--steps", "12", "-p", "a small green ring",
              "--cache", setting.dump(), "-o", path("a.y4m"), "--report", path("report.json")});
  ASSERT_EQ(cached.code, 0) << cached.err;
  EXPECT_THAT(cached.err, Not(HasSubstr("warning")));
  EXPECT_THAT(cached.out, HasSubstr("reused"));
}

TEST_F(CliCalibrateMagcache, BadInput) {
  expect_refused(calibrate({"-o", path("m.json")}), 2, "--prompt");
  expect_refused(calibrate({"-p", "x", "-o", path("no/such/folder/m.json")}), 1, "no/such/folder");
  const nlohmann::json setting = {{"method", "magcache"}, {"calibration", path("none.json")}};
  expect_refused(winnow({"generate", "--model", tests::kModel, "-p", "x", "--cache", setting.dump(), "-o", path("a.y4m")}), 1, "none.json");
  std::ofstream(path("prompts.txt")) << "a red ball\n";
  const tests::Finished over = calibrate({"--prompts", path("prompts.txt"), "-o", path("prompts.txt")});
  EXPECT_EQ(over.code, 1);
  EXPECT_THAT(over.err, HasSubstr("is read as --prompts and written as --output"));
}

}  // namespace
}  // namespace winnow
