// winnow capture and winnow compare, as built, on winnow-tiny: what they write, and what every kind of bad input gets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "tests/cli_testing.h"

namespace winnow {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
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
}

TEST_F(CliCapture, WhatTheRunNeverDoesIsFoundOutBeforeIt) {
  const auto refused = [&](std::vector<std::string> more, const std::string& part) {
    more.insert(more.end(), {"-o", path("c")});
    const tests::Finished run = capture(more);
    expect_refused(run, 1, part);
    EXPECT_THAT(run.err, Not(HasSubstr("denoise")));
  };
  refused({"--steps", "3"}, "[capture] steps: expected 0 to 2, got 3");
  refused({"--layers", "6"}, "[capture] layers: expected 0 to 5, got 6");
  refused({"--experts", "0,2"}, "[capture] experts: expected 0 to 1, got 2");
  refused({"--experts", "1", "--boundary-ratio", "0"}, "[capture] experts: expected 0, got 1");
  refused({"--branch", "cond,uncond", "--guidance-scale", "1"}, "[capture] branch: expected cond, got uncond");
  refused({"--branch", "uncond", "--steps", "2", "--guidance-until", "0.4"}, "[capture] expected a self-attention call");
}

TEST_F(CliCapture, ARefusedRunLeavesNoFolder) {
  expect_refused(winnow({"capture", "--model", tests::kModel, "-p", "a crimson ball", "-o", path("new/c/")}), 1, "crimson");
  expect_refused(capture({"--attention", R"({"method":"dense","executor":"abacus"})", "-o", path("c")}), 1, "abacus");
  expect_refused(capture({"--attention", R"({"method":"plan","path":"none"})", "-o", path("c")}), 1, "none");
  expect_refused(capture({"--latents", path("none"), "-o", path("c")}), 1, "none");
  fs::create_directory(path("mine"));
  EXPECT_EQ(capture({"--latents", path("none"), "-o", path("mine")}).code, 1);
  EXPECT_TRUE(fs::exists(path("mine")));
}

class CliCompare : public tests::Cli {
 protected:
  // Random captures of one small size.
  std::string write_captures(std::int64_t tokens = 320) const {
    Tensor x(DType::f32, {tokens, 1, 16});
    for (std::int64_t i = 0; i < x.numel(); ++i) x.as<float>()[i] = 2.0F * std::sin(static_cast<float>(i * i % 977));
    const NamedTensor tensors[] = {{"q", x}, {"k", x}, {"v", x}};
    fs::create_directories(path("captures"));
    write_safetensors(path("captures/size" + std::to_string(tokens) + ".safetensors"), tensors);
    return path("captures");
  }
  static std::vector<std::string> videos(const std::string& prompts, std::vector<std::string> more) {
    std::vector<std::string> words = {"compare",  "--model", tests::kModel, "-W", "48",        "-H",    "48",
                                      "--frames", "9",       "--steps",     "2",  "--prompts", prompts, "--no-plot"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::string error_of(const std::vector<std::string>& words) const {
    const tests::Finished run = winnow(words);
    EXPECT_EQ(run.code, 1) << run.err;
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
    EXPECT_FALSE(fs::exists(path("out/report.json")));
    return run.err;
  }
};

TEST_F(CliCompare, MeasuresSettingsOnCaptures) {
  const std::string settings = write(
      "s.json", R"({"densities":[0.6],"methods":[{"label":"best","attention":{"method":"oracle"},"knob":"density","range":[0.01,1.0]}]})");
  const tests::Finished run = winnow({"compare", "--captures", write_captures(), "--settings", settings, "--methods", "mean_pool",
                                      R"({ "method": "mean_pool", "cdf": 0.5 })", "--calls", "2", "--no-plot", "-o", path("out")});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("mass recall"), HasSubstr(R"(| {"method":"mean_pool","cdf":0.5} |)")));
  EXPECT_THAT(run.out, Not(HasSubstr("<!--")));  // what tools look for in report.md
  EXPECT_THAT(tests::read_file(path("out/report.md")), HasSubstr("<!-- compare:captures -->"));
  const auto report = nlohmann::json::parse(tests::read_file(path("out/report.json")));
  ASSERT_GE(report.at("captures").size(), 3U);
  const auto best = std::find_if(report.at("captures").begin(), report.at("captures").end(),
                                 [](const nlohmann::json& record) { return record.at("label") == "best"; });
  ASSERT_NE(best, report.at("captures").end());
  EXPECT_EQ(best->at("capture"), "size320");
  EXPECT_NEAR(best->at("density"), 0.6, 1e-6);  // 3 of 5 tiles
  EXPECT_EQ(best->at("set_recall"), 1.0);
  EXPECT_TRUE(report.at("videos").empty());
  for (const char* name : {"report.json", "report.csv", "report.md"}) EXPECT_GT(fs::file_size(path("out") + "/" + name), 0U);
}

TEST_F(CliCompare, MakesVideosAndResumes) {
  const std::string prompts = write("p.txt", "a red ball\na blue star\n");
  const std::vector<std::string> words = videos(prompts, {"--methods", "mean_pool", "--floor-prompts", "0", "-o", path("out")});
  const tests::Finished run = winnow(words);
  ASSERT_EQ(run.code, 0) << run.err;
  const auto report = nlohmann::json::parse(tests::read_file(path("out/report.json")));
  ASSERT_EQ(report.at("videos").size(), 1U);
  EXPECT_EQ(report.at("videos").at(0).at("prompts"), 2);
  EXPECT_GT(report.at("videos").at(0).at("psnr_db"), 10.0);
  EXPECT_FALSE(fs::exists(path("out/report.unfinished.json")));
  std::vector<std::string> again = words;
  again.emplace_back("--resume");
  const tests::Finished resumed = winnow(again);
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("2 videos taken over"));
  EXPECT_EQ(nlohmann::json::parse(tests::read_file(path("out/report.json"))), report);
}

TEST_F(CliCompare, CtrlCLeavesNoHalfWrittenFile) {
  const std::string prompts = write("p.txt", "a red ball\n");
  std::vector<std::string> words = {tests::kWinnow, "compare",   "--model",   tests::kModel, "--prompts", prompts,
                                    "--methods",    "mean_pool", "--no-plot", "-o",          path("out")};
  tests::Program program(words, folder());
  ASSERT_TRUE(program.wait_for("videos 1/"));
  program.send(SIGINT);
  EXPECT_EQ(program.finish().code, 130);
  EXPECT_TRUE(fs::is_empty(path("out")));
}

TEST_F(CliCompare, WrongUsage) {
  expect_refused(winnow({"compare", "--methods", "mean_pool"}), 2, "--captures");
  expect_refused(winnow({"compare", "--captures", "c"}), 2, "--methods or --settings");
  expect_refused(winnow({"compare", "--model", tests::kModel, "--methods", "mean_pool"}), 2, "--prompts");
  expect_refused(winnow({"compare", "--captures", "c", "--methods", "mean_pool", "--densities", "0"}), 2, "--densities");
  expect_refused(winnow({"compare", "--captures", "c", "--methods", "mean_pool", "--densities", "nan"}), 2, "--densities");
}

// Flags that could not change anything.
TEST_F(CliCompare, FlagsOfWhatIsNotMeasuredAreRefused) {
  const std::vector<std::string> on_captures = {"compare", "--captures", "c", "--methods", "sol"};
  const auto refused = [&](std::vector<std::string> words, const std::vector<std::string>& more, const std::string& part) {
    words.insert(words.end(), more.begin(), more.end());
    expect_refused(winnow(words), 2, part);
  };
  for (const std::vector<std::string>& more : {std::vector<std::string>{"--frames", "9"},
                                               {"-W", "48"},
                                               {"--steps", "3"},
                                               {"--seed", "1"},
                                               {"--latents", "l"},
                                               {"--num-prompts", "1"},
                                               {"--repeat", "2"},
                                               {"--floor-prompts", "1"},
                                               {"--video-densities", "0.5"},
                                               {"--dtype", "f32"},
                                               {"--resume"}}) {
    refused(on_captures, more, "requires --model");
  }
  refused(on_captures, {"--densities", "0.5"}, "A method with a knob in --settings, for --densities, is required");
  refused({"compare", "--model", "m", "--prompts", "p", "--methods", "sol"}, {"--calls", "3"}, "--calls requires --captures");
}

TEST_F(CliCompare, LayersThatTheModelDoesNotHave) {
  const std::string setting = R"({"method":"sol","dense_layers":[6]})";
  EXPECT_THAT(error_of(videos(write("p.txt", "a red ball\n"), {"--methods", setting, "-o", path("out")})),
              HasSubstr("[compare] " + setting + ": dense_layers: expected layers from 0 to 5, got 6"));
}

TEST_F(CliCompare, BadInputs) {
  const auto compare = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"compare", "--no-plot", "-o", path("out"), "--captures"};
    words.insert(words.end(), more.begin(), more.end());
    return error_of(words);
  };
  EXPECT_THAT(compare({path("none"), "--methods", "mean_pool"}), HasSubstr("expected a folder with captures"));
  const std::string captures = write_captures(320);
  EXPECT_THAT(compare({captures, "--methods", "best"}), HasSubstr("attention: expected one of"));
  EXPECT_THAT(compare({captures, "--methods", "mean_pool", "mean_pool"}), HasSubstr("have the same label"));
  EXPECT_THAT(compare({captures, "--methods", "mean_pool", R"({"method":"mean_pool"})"}), HasSubstr("have the same setting"));
  EXPECT_THAT(compare({captures, "--settings", write("s.json", "{}")}), HasSubstr("expected a list of methods"));
  EXPECT_THAT(compare({captures, "--settings", write("s.json", R"({"methods":[{"label":"floor","attention":{"method":"sol"}}]})")}),
              HasSubstr("label: expected another name"));
  EXPECT_THAT(error_of(videos(write("p.txt", "\n# none\n"), {"--methods", "mean_pool", "-o", path("out")})), HasSubstr("found none"));
  EXPECT_THAT(error_of(videos(path("no.txt"), {"--methods", "mean_pool", "-o", path("out")})), HasSubstr("no.txt"));
  write_captures(321);
  EXPECT_THAT(compare({captures, "--methods", "mean_pool"}), HasSubstr("expected q [1,320,1,16] f32"));
}

TEST_F(CliCompare, UnknownWordsAreFoundOutBeforeTheFirstVideo) {
  const std::string prompts = write("p.txt", "a red ball\n\na blue star\na crimson ball\n");
  const std::string compared = error_of(videos(prompts, {"--methods", "mean_pool", "-o", path("out")}));
  EXPECT_THAT(compared, HasSubstr("[compare] " + prompts + ":4: words that this model does not know: \"crimson\""));
  EXPECT_EQ(winnow(videos(prompts, {"--methods", "mean_pool", "--num-prompts", "1", "--floor-prompts", "0", "-o", path("one")})).code, 0);
}

TEST_F(CliCompare, SettingsAreCheckedBeforeTheFirstRun) {
  const std::string prompts = write("p.txt", "a red ball\n");
  const std::string captures = write_captures();
  const std::string missing = path("none");
  const std::vector<std::string> settings = {
      R"({"method":"mean_pool","executor":"nope"})", R"({"method":"plan","path":")" + missing + R"("})",
      R"({"method":"subblock","budgets":")" + missing + R"("})", R"({"method":"subblock","budget":{"map":")" + missing + R"("}})"};
  for (const std::string& setting : settings) {
    EXPECT_THAT(error_of(videos(prompts, {"--methods", "mean_pool", setting, "-o", path("out")})), HasSubstr("[compare] " + setting));
    EXPECT_THAT(error_of({"compare", "--captures", captures, "--methods", "mean_pool", setting, "--no-plot", "-o", path("out")}),
                HasSubstr("[compare] " + setting));
  }
}

TEST_F(CliCompare, SaysThatCapturesHaveNoBudget) {
  const tests::Finished run = winnow(
      {"compare", "--captures", write_captures(), "--methods", R"({"method":"subblock","budget":{}})", "--no-plot", "-o", path("out")});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("note: {\"method\":\"subblock\",\"budget\":{}}: on captures without its budget"));
}

class CliCompareCache : public CliCompare {
 protected:
  std::string settings_ = R"({"settings":[{"label":"a-1","cache":{"method":"first_block"}}]})";
  std::string refusal(const std::string& prompts) const {
    const std::string settings = write("s.json", settings_);
    return error_of({"compare-cache", "--model", tests::kModel, "-W", "48", "-H", "48", "--frames", "9", "--steps", "10", "--settings",
                     settings, "--prompts", write("p.txt", prompts), "--no-plot", "-o", path("out")});
  }
};

TEST_F(CliCompareCache, BadPrompts) {
  EXPECT_THAT(refusal("\n# none\n"), StartsWith("winnow: [compare-cache] " + path("p.txt") + ": expected one prompt a line"));
  EXPECT_THAT(refusal("a red ball\na red ball\n"), HasSubstr("p.txt:2: the prompt \"a red ball\" is there twice"));
  EXPECT_THAT(refusal("a red ball\na dog\n"), HasSubstr("[compare-cache] " + path("p.txt") + ":2: words that this model does not know"));
}

TEST_F(CliCompareCache, SettingsAreCheckedBeforeTheFirstRun) {
  settings_ = R"({"settings":[{"label":"b-1","cache":{"method":"magcache","calibration":")" + path("none") + R"("}}]})";
  EXPECT_THAT(refusal("a red ball\n"), HasSubstr("[compare-cache] b-1: "));
}

}  // namespace
}  // namespace winnow
