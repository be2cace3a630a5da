// winnow capture and winnow compare, as built, on winnow-tiny: what they write, and what every kind of bad input gets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "tests/cli_testing.h"

namespace winnow {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class CliCapture : public tests::Cli {
 protected:
  // Of a clip that takes a second or two.
  tests::Finished capture(std::vector<std::string> more) const {
    std::vector<std::string> words = {"capture", "--model", tests::kModel, "-p", "a small green ring", "-W", "48",
                                      "-H",      "48",      "--frames",    "9",  "--num-steps",        "3"};
    words.insert(words.end(), more.begin(), more.end());
    return winnow(words);
  }
};

TEST_F(CliCapture, WritesTheChosenCalls) {
  const tests::Finished run = capture({"--layers", "1,5", "--steps", "0,1", "--branch", "cond,uncond", "-s", "3", "-o", path("c")});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("step01_expert1_layer05_uncond.safetensors"));
  const std::string one = path("c/step00_expert0_layer01_cond.safetensors");
  ASSERT_TRUE(fs::exists(one));
  EXPECT_EQ(std::distance(fs::directory_iterator(path("c")), {}), 8);
  const SafetensorsFile file = SafetensorsFile::open(one);
  EXPECT_EQ(file.at("q").describe(), "[1,324,2,128] bf16");
  EXPECT_EQ(file.metadata().at("prompt"), "a small green ring");
  EXPECT_EQ(file.metadata().at("seed"), "3");
  EXPECT_EQ(file.metadata().at("grid"), "9x6x6");
  EXPECT_EQ(winnow({"attend", "--qkv", one, "--repeat", "1"}).code, 0);
}

TEST_F(CliCapture, BadChoices) {
  expect_refused(winnow({"capture", "--model", tests::kModel, "-o", path("c")}), 2, "--prompt");
  expect_refused(winnow({"capture", "--model", tests::kModel, "-p", "a ball"}), 2, "--output");
  expect_refused(capture({"--branch", "both", "-o", path("c")}), 2, "--branch");
  expect_refused(capture({"--layers", "-1", "-o", path("c")}), 2, "--layers");
  expect_refused(capture({"--attention", "none", "-o", path("c")}), 1, "attention: expected one of");
  const tests::Finished late = capture({"--steps", "3", "-o", path("c")});
  EXPECT_EQ(late.code, 1);
  EXPECT_THAT(late.err, HasSubstr("steps: expected 0 to 2, got 3"));
  const tests::Finished deep = capture({"--layers", "6", "-o", path("c")});
  EXPECT_EQ(deep.code, 1);
  EXPECT_THAT(deep.err, HasSubstr("layers: expected 0 to 5, got 6"));
}

}  // namespace
}  // namespace winnow
