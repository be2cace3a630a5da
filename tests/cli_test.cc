// The built program on winnow-tiny: what it writes, and what every kind of bad input gets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "media/child_program.h"
#include "tests/cli_testing.h"
#include "tests/support/npy.h"
#include "tests/support/temporary_folder.h"
#include "winnow/plan.h"

namespace winnow {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

using tests::Cli;
using tests::kModel;
using tests::kWinnow;

const std::vector<std::string> kPrompt = {"-p", "a large red ball bouncing over a plain navy background"};

std::vector<std::string> with_prompt(std::vector<std::string> more) {
  more.insert(more.begin(), kPrompt.begin(), kPrompt.end());
  return more;
}

using CliHelp = Cli;
using CliUsage = Cli;
using CliErrors = Cli;
using CliRun = Cli;
using CliAttend = Cli;

TEST_F(CliHelp, VersionAndHelpGoToStdout) {
  EXPECT_EQ(winnow({"--version"}).out, "winnow " WINNOW_VERSION "\n");
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{{"--help"},
                                                                                     {"generate", "--help"},
                                                                                     {"attend", "--help"},
                                                                                     {"info", "--help"},
                                                                                     {"config", "--help"},
                                                                                     {"config", "print", "--help"}}) {
    const tests::Finished run = winnow(words);
    EXPECT_EQ(run.code, 0);
    EXPECT_THAT(run.out, HasSubstr("Usage: winnow"));
    EXPECT_THAT(run.err, IsEmpty());
  }
}

TEST_F(CliHelp, GroupsOfCommandsHaveNoExamplesOfOthers) {
  for (const char* group : {"calibrate", "config"}) EXPECT_THAT(winnow({group, "--help"}).out, Not(HasSubstr("winnow generate"))) << group;
}

TEST_F(CliHelp, GenerateNamesEveryFlag) {
  const std::string help = winnow({"generate", "--help"}).out;
  for (const char* flag :
       {"--model",          "-p,--prompt",      "-n,--negative-prompt", "-W,--width",       "-H,--height",  "--frames",      "--fps",
        "--steps",          "--guidance-scale", "--guidance-scale-2",   "--guidance-until", "--flow-shift", "--solver",      "--sigma-mode",
        "--boundary-ratio", "-s,--seed",        "--attention",          "--cache",          "--plan",       "--plan-blocks", "--device",
        "--threads",        "--latents",        "--prompt-embeds",      "-o,--output",      "--compare",    "--report",      "--dry-run",
        "--dtype",          "--repeat",         "--save-latents",       "--sheet",          "Examples:"}) {
    EXPECT_THAT(help, HasSubstr(flag));
  }
}

TEST_F(CliHelp, InfoListsExecutors) {
  const tests::Finished text = winnow({"info", "--no-peak"});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr(WINNOW_VERSION), HasSubstr("reference"), HasSubstr("threads")));
  const auto json = nlohmann::json::parse(winnow({"info", "--json", "--no-peak", "--threads", "1"}).out);
  EXPECT_EQ(json.at("threads"), 1);
  bool has_available = false;
  for (const auto& executor : json.at("executors")) {
    has_available = has_available || executor.at("available").get<bool>();
    EXPECT_EQ(executor.contains("why_not"), !executor.at("available").get<bool>());
  }
  EXPECT_TRUE(has_available);
}

// Measures for some seconds; what it writes is read back by a run and by info.
TEST_F(CliHelp, InfoMeasuresAProfile) {
  const std::string profile = path("cache/profile.json");
  const tests::Finished measured = winnow({"info", "--no-peak", "--json", "--measure", "--profile", profile});
  ASSERT_EQ(measured.code, 0) << measured.err;
  const auto costs = nlohmann::json::parse(measured.out).at("costs");
  EXPECT_EQ(costs.at("profile"), profile);
  bool has_mean_pool = false;
  for (const auto& line : costs.at("lines")) {
    has_mean_pool = has_mean_pool || (line.contains("method") && line.at("method") == "mean_pool" && line.contains("break_even_tokens"));
  }
  EXPECT_TRUE(has_mean_pool);
  const auto info = [&](const std::string& named) {
    return tests::Program({"/usr/bin/env", "WINNOW_PROFILE=" + named, kWinnow, "info", "--no-peak"}, folder()).finish();
  };
  EXPECT_THAT(info(profile).out, AllOf(HasSubstr("profile    " + profile), Not(HasSubstr("not used"))));
  EXPECT_THAT(info(path("missing.json")).out, HasSubstr("not used: [profile]"));
  EXPECT_THAT(info("none").out, Not(HasSubstr("profile ")));
}

TEST_F(CliHelp, InfoRefusesToMeasureWithoutAPlace) {
  const tests::Finished none = tests::Program({"/usr/bin/env", "WINNOW_PROFILE=none", kWinnow, "info", "--measure"}, folder()).finish();
  EXPECT_NE(none.code, 0);
  EXPECT_THAT(none.err, HasSubstr("expected a file to write to"));
  EXPECT_THAT(winnow({"info", "--measure", "--profile", "/proc/none/profile.json"}).err, HasSubstr("/proc/none"));
  EXPECT_NE(winnow({"info", "--profile", path("x.json")}).code, 0) << "without --measure";
}

TEST_F(CliHelp, InfoSaysWhenTheForcedExecutorCannotRun) {
  const auto info = [&](const std::string& name, const std::string& flag) {
    return tests::Program({"/usr/bin/env", "WINNOW_EXECUTOR=" + name, kWinnow, "info", "--no-peak", flag}, folder()).finish();
  };
  const tests::Finished text = info("abacus\x1b[31m", "--threads=1");
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, HasSubstr("forced     abacus?[31m (WINNOW_EXECUTOR): names none of the executors below, every call will fail"));
  EXPECT_EQ(nlohmann::json::parse(info("abacus\xff", "--json").out).at("forced_executor_problem"), "names none of the executors below");
  EXPECT_THAT(info("scalar_f32", "--threads=1").out, HasSubstr("forced     scalar_f32 (WINNOW_EXECUTOR)\n"));
  const auto all = nlohmann::json::parse(info("scalar_f32", "--json").out);
  EXPECT_FALSE(all.contains("forced_executor_problem"));
  for (const auto& executor : all.at("executors")) {
    if (executor.at("available").get<bool>()) continue;
    const auto forced = nlohmann::json::parse(info(executor.at("name"), "--json").out);
    EXPECT_EQ(forced.at("forced_executor_problem"), executor.at("why_not"));
  }
}

TEST_F(CliHelp, ConfigPrintsTheResolvedSetting) {
  const tests::Finished run = winnow({"config", "print", "--attention", R"({"method":"mean_pool","cdf":0.5})"});
  EXPECT_EQ(run.code, 0);
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json.at("method"), "mean_pool");
  EXPECT_EQ(json.at("cdf"), 0.5);
  EXPECT_TRUE(json.contains("skip_first_steps"));
}

TEST_F(CliUsage, WrongUsageIsExitCode2) {
  expect_refused(winnow({}), 2, "subcommand");
  expect_refused(winnow({"frobnicate"}), 2, "frobnicate");
  expect_refused(winnow(small(with_prompt({"-o", path("a.y4m"), "--bogus"}))), 2, "--bogus");
  expect_refused(winnow(small(with_prompt({"-o", path("a.y4m"), "--solver", "heun"}))), 2, "heun");
  expect_refused(winnow(small(with_prompt({"-o", path("a.y4m"), "--seed", "1x"}))), 2, "1x");
  expect_refused(winnow(small(with_prompt({"-o", path("a.y4m"), "--fps", "0"}))), 2, "fps");
  expect_refused(winnow({"generate", "--model", kModel, "-p", "x", "-o", path("a.y4m"), "--steps", "many"}), 2, "many");
  expect_refused(winnow(small(with_prompt({}))), 2, "--output");
  expect_refused(winnow(small({"-o", path("a.y4m")})), 2, "--prompt");
  expect_refused(winnow(small(with_prompt({"-o", path("a.y4m"), "--prompt-embeds", "x"}))), 2, "--prompt");
  expect_refused(winnow({"generate", "-p", "x", "-o", path("a.y4m")}), 2, "--model");
}

TEST_F(CliUsage, NumbersOutOfRangeNameTheRange) {
  const auto refused = [&](const std::string& flag, const std::string& value, const std::string& expected) {
    expect_refused(winnow({"generate", "--model", kModel, "-p", "x", "-o", path("a.y4m"), flag, value}), 2,
                   flag + ": expected " + expected + ", got " + value);
  };
  for (const char* value : {"0", "99999999999", "1e3", "9999999999999999999999"}) {
    refused("--steps", value, "an integer from 1 to 10000");
    refused("--width", value, "an integer from 1 to 2147483647");
  }
  refused("--fps", "99999999999", "an integer from 1 to 1000");
  refused("--threads", "-1", "an integer from 0 to 4096");
  for (const char* flag : {"--guidance-scale", "--guidance-scale-2", "--guidance-until", "--flow-shift", "--boundary-ratio"}) {
    refused(flag, "1,5", "a number");
  }
  expect_refused(winnow({"attend", "--qkv", "q", "--rows", "99999999999"}), 2,
                 "--rows: expected an integer from 1 to 2147483647, got 99999999999");
  expect_refused(winnow({"calibrate", "budget", "--model", kModel, "-p", "x", "-o", path("b"), "--step-stride", "3000000000"}), 2,
                 "--step-stride: expected an integer from 1 to 2147483647, got 3000000000");
}

TEST_F(CliUsage, ListsHaveNoEmptyItems) {
  const std::vector<std::string> capture = {"capture", "--model", kModel, "-p", "x", "-o", path("c")};
  const auto refused = [&](std::vector<std::string> words, const std::string& flag, const std::string& value, const std::string& part) {
    words.insert(words.end(), {flag, value});
    expect_refused(winnow(words), 2, flag + ": " + part);
  };
  for (const char* list : {"1,,1", "1,1,", ",1", ",", "1, ,1"}) {
    const std::string part = "expected a value before and after every comma, got \"" + std::string(list) + "\"";
    for (const char* flag : {"--layers", "--steps", "--experts"}) refused(capture, flag, list, part);
    refused({"compare", "--captures", "c", "--methods", "sol"}, "--densities", list, part);
  }
  refused(capture, "--branch", "cond,", "expected a value");
  refused(capture, "--layers", "0,x", "expected an integer from 0 to 1048576, got x");
  refused({"compare", "--captures", "c", "--methods", "sol"}, "--densities", "0.5,2", "expected a number from 1e-06 to 1, got 2");
  refused({"attend", "--qkv", "q"}, "--keys", "q,k", "expected three names, got 2");
  refused({"attend", "--qkv", "q"}, "--keys", "q,,k,v", "expected a value");
}

TEST_F(CliUsage, ErrorsPointToTheHelpOfTheirOwnCommand) {
  expect_refused(winnow({"calibrate", "budget", "--bogus"}), 2, "(see winnow calibrate budget --help)");
  expect_refused(winnow({"calibrate", "budget", "-o", "b"}), 2, "(see winnow calibrate budget --help)");  // found after parsing
  expect_refused(winnow({"config", "print", "--bogus"}), 2, "(see winnow config print --help)");
  expect_refused(winnow({"calibrate", "--bogus"}), 2, "(see winnow calibrate --help)");
  expect_refused(winnow({"calibrate", "everything"}), 2,
                 "expected one of skip-softmax, budget, magcache, got \"everything\" (see winnow calibrate --help)");
  expect_refused(winnow(small({"-o", path("a.y4m")})), 2, "(see winnow generate --help)");
}

// An unset variable of a script.
TEST_F(CliUsage, NoOptionTakesAnEmptyValue) {
  const auto refused = [&](std::vector<std::string> words, const std::string& flag, const std::string& expected) {
    for (const char* value : {"", " \t"}) {
      std::vector<std::string> all = words;
      all.insert(all.end(), {flag, value});
      expect_refused(winnow(all), 2, flag + ": expected " + expected + ", got an empty text");
    }
  };
  for (const char* flag : {"--guidance-scale", "--guidance-scale-2", "--guidance-until", "--flow-shift", "--boundary-ratio", "--seed"}) {
    refused(small(with_prompt({"-o", path("a.y4m")})), flag, "a number");
  }
  refused({"generate", "--model", kModel, "-p", "x", "-o", path("a.y4m")}, "--steps", "an integer from 1 to 10000");
  for (const char* flag : {"--plan", "--latents", "--report", "--sheet", "--save-latents"}) {
    refused(small(with_prompt({"-o", path("a.y4m")})), flag, "a file name");
  }
  refused(small({"-o", path("a.y4m")}), "--prompt-embeds", "a file name");
  refused(small(with_prompt({"--save-latents", path("l")})), "--output", "a file name");
  for (const char* flag : {"--attention", "--cache", "--compare"}) {
    refused(small(with_prompt({"-o", path("a.y4m")})), flag, "NAME|FILE|JSON");
  }
  for (const char* flag : {"--json", "--save-plan"}) refused({"attend", "--qkv", path("q")}, flag, "a file name");
  refused({"attend", "--qkv", path("q")}, "--grid", "FxHxW");
  refused({"attend", "--qkv", path("q")}, "--prefix", "words");
  refused({"compare", "--methods", "dense"}, "--captures", "a folder name");
  refused({"compare", "--captures", path("c"), "--methods", "dense"}, "--settings", "a file name");
  refused({"compare", "--captures", path("c")}, "--methods", "NAME|FILE|JSON ...");
  refused({"capture", "--model", kModel, "-p", "x"}, "--output", "a folder name");
  refused({"calibrate", "skip-softmax", "--model", kModel, "-p", "x"}, "--executor", "NAME");
  refused({"calibrate", "skip-softmax", "--model", kModel, "-p", "x"}, "--output", "a file name");
  refused({"config", "print"}, "--cache", "NAME|FILE|JSON");
  refused({"info", "--measure"}, "--profile", "a file name");
  refused({"generate", "--model", kModel, "-o", path("a.y4m")}, "--prompt", "words");
  refused({"capture", "--model", kModel, "-o", path("c")}, "--prompt", "words");
  for (const char* what : {"skip-softmax", "magcache", "budget"}) {
    refused({"calibrate", what, "--model", kModel, "-o", path("c.json")}, "--prompt", "words");
  }
  const tests::Finished negative = winnow(small(with_prompt({"--dry-run", "-n", ""})));
  EXPECT_EQ(negative.code, 0) << negative.err;
}

TEST_F(CliErrors, OptionsOutOfRange) {
  expect_refused(winnow(small({"-o", path("a.y4m"), "-p", "a crimson ball eating a dog"})), 1, "crimson");
  expect_refused(winnow(small({"-o", path("a.y4m"), "-p", "a crimson ball eating a dog"})), 1, "dog");
  expect_refused(winnow(small(with_prompt({"-o", path("a.y4m"), "--guidance-scale", "nan"}))), 1, "guidance");
  expect_refused(winnow(small(with_prompt({"-o", path("a.y4m"), "--flow-shift", "-1"}))), 1, "shift");
  expect_refused(winnow(small(with_prompt({"-o", path("a.y4m"), "--boundary-ratio", "7"}))), 1, "boundary");
  expect_refused(winnow({"generate", "--model", kModel, "-p", kPrompt[1], "-o", path("a.y4m"), "--steps", "0"}), 2, "steps");
  expect_refused(winnow({"generate", "--model", kModel, "-p", kPrompt[1], "-o", path("a.y4m"), "-W", "50"}), 1, "50");
  expect_refused(winnow({"generate", "--model", kModel, "-p", kPrompt[1], "-o", path("a.y4m"), "--dry-run", "--steps", "0"}), 2, "steps");
}

TEST_F(CliErrors, ClipLargerThanTheMachine) {
  const std::vector<std::string> words = {"generate", "--model", kModel, "-p",   kPrompt[1], "-o",  path("a.y4m"),
                                          "-W",       "8192",    "-H",   "8192", "--frames", "1024"};
  expect_refused(winnow(words), 1, "[generate] memory: expected at most the ");
}

TEST_F(CliErrors, WeightsLargerThanTheMachineAreNotLoaded) {
  // A file with a hole of 8 TiB instead of data; even a dry run would have to load it.
  fs::create_directories(path("model/transformer"));
  const std::string weights = path("model/transformer/diffusion_pytorch_model.safetensors");
  std::string header = R"({"w":{"dtype":"BF16","shape":[4398046511104],"data_offsets":[0,8796093022208]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  std::ofstream(weights, std::ios::binary) << length << header;
  std::error_code error;
  fs::resize_file(weights, 8 + header.size() + 8796093022208ULL, error);
  ASSERT_FALSE(error) << error.message();
  const tests::Finished run = winnow({"generate", "--model", path("model"), "-p", "x", "--dry-run"});
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.err, AllOf(StartsWith("winnow: [generate] memory: expected at most the "), HasSubstr("got 8.80 TB of weights")));
}

// winnow-tiny with patches of one pixel, so that any size fits.
void write_pixel_model(const std::string& folder) {
  fs::copy(kModel, folder, fs::copy_options::recursive);
  const auto edit = [&](const std::string& file, const std::function<void(nlohmann::json&)>& change) {
    auto json = nlohmann::json::parse(tests::read_file(folder + "/" + file));
    change(json);
    std::ofstream(folder + "/" + file) << json;
  };
  edit("vae/config.json", [](nlohmann::json& json) {
    json["block_size"] = json["scale_factor_spatial"] = 1;
    json["z_dim"] = 3;
    json["latents_mean"] = {0, 0, 0};
    json["latents_std"] = {1, 1, 1};
  });
  for (const std::string expert : {"transformer", "transformer_2"}) {
    edit(expert + "/config.json", [](nlohmann::json& json) {
      json["in_channels"] = json["out_channels"] = 3;
      json["patch_size"] = {1, 1, 1};
    });
    const std::string weights = "/diffusion_pytorch_model.safetensors";
    const SafetensorsFile file = SafetensorsFile::open(kModel + "/" + expert + weights);
    const std::int64_t width = file.at("patch_embedding.weight").size(0);
    const Tensor zeros(file.at("proj_out.bias").dtype, {3 * width});
    std::vector<NamedTensor> tensors;
    for (const std::string& key : file.keys()) tensors.push_back({key, file.at(key)});
    for (NamedTensor& tensor : tensors) {
      if (tensor.name == "patch_embedding.weight") tensor.view = zeros.view().reshape({width, 3, 1, 1, 1});
      if (tensor.name == "proj_out.weight") tensor.view = zeros.view().reshape({3, width});
      if (tensor.name == "proj_out.bias") tensor.view = zeros.view().slice(0, 0, 3);
    }
    write_safetensors(folder + "/" + expert + weights, tensors);
  }
}

TEST_F(CliErrors, AnOddSizeIsFoundOutBeforeTheRun) {
  if (media::find_program("ffmpeg").empty()) GTEST_SKIP() << "no ffmpeg here";
  const tests::TemporaryFolder models;
  write_pixel_model(models / "pixels");
  const auto words = [&](const std::string& output) {
    return std::vector<std::string>{"generate", "--model", models / "pixels", "-p", kPrompt[1], "-o", path(output), "-W", "15",
                                    "-H",       "16",      "--frames",        "1",  "--steps",  "1"};
  };
  const tests::Finished run = winnow(words("a.mp4"));
  expect_refused(run, 1, "a.mp4: .mp4 needs an even width and height, got 15x16; .y4m takes any");
  EXPECT_THAT(run.err, Not(HasSubstr("denoise")));
  EXPECT_EQ(winnow(words("a.y4m")).code, 0);
}

TEST_F(CliErrors, AreOneLineWhateverIsInThem) {
  expect_refused(winnow({"config", "print", "--attention", R"({"method":"mean_pool","a\nb\u001b[31m":1})"}), 1, "unknown key \"a?b?[31m\"");
  expect_refused(winnow({"config", "print", "--attention", R"({"method":")" + std::string(100000, 'x') + "\"}"}), 1, "xxx...\n");
  expect_refused(winnow({"two\nlines"}), 2, "two?lines");
}

TEST_F(CliErrors, WhatThisVersionDoesNotHave) {
  expect_refused(winnow(small(with_prompt({"-o", path("a.y4m"), "--device", "cuda"}))), 1, "no CUDA");
}

TEST_F(CliErrors, CacheSettings) {
  expect_refused(winnow(small(with_prompt({"-o", path("a.y4m"), "--cache", "teacache"}))), 1, "coefficients");
  expect_refused(winnow(small(with_prompt({"-o", path("a.y4m"), "--cache", "fast"}))), 1, "expected one of off, first_block");
  expect_refused(winnow(small(with_prompt({"-o", path("a.y4m"), "--cache", R"({"method":"off","min_steps":1})"}))), 1, "min_steps");
}

TEST_F(CliErrors, AttentionSettings) {
  expect_refused(winnow(small(with_prompt({"-o", path("a.y4m"), "--compare", R"({"method":"sol","dense_layers":[6]})"}))), 1,
                 "dense_layers: expected layers from 0 to 5, got 6");
  expect_refused(winnow(small(with_prompt({"-o", path("a.y4m"), "--attention", "magic"}))), 1, "magic");
  expect_refused(winnow(small(with_prompt({"-o", path("a.y4m"), "--attention", R"({"method":"mean_pool")"}))), 1, "winnow: [");
  expect_refused(winnow(small(with_prompt({"-o", path("a.y4m"), "--attention", R"({"method":"mean_pool","cfd":0.9})"}))), 1, "cfd");
  expect_refused(winnow(small(with_prompt({"-o", path("a.y4m"), "--attention", R"({"method":"mean_pool","cdf":1.5})"}))), 1, "cdf");
  expect_refused(winnow(small(with_prompt({"-o", path("a.y4m"), "--compare", R"({"method":"skip_softmax","threshold":"low"})"}))), 1,
                 "threshold");
  expect_refused(winnow(small(with_prompt({"-o", path("a.y4m"), "--plan", path("missing.safetensors")}))), 1, "missing.safetensors");
}

TEST_F(CliErrors, OutputsAreCheckedBeforeTheRun) {
  // A model that does not exist would be reported first if loading came first.
  const std::vector<std::string> base = {"generate", "--model", path("no-model"), "-p", "x"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return more;
  };
  expect_refused(winnow(with({"-o", path("missing/a.y4m")})), 1, "missing does not exist");
  expect_refused(winnow(with({"-o", path("a.avi")})), 1, ".avi");
  expect_refused(winnow(with({"-o", path("a.y4m"), "--report", path("none/r.json")})), 1, "none does not exist");
  expect_refused(winnow(with({"-o", path("a.y4m"), "--sheet", path("a.jpg")})), 1, "a.jpg");
  expect_refused(winnow(with({"-o", path("a.y4m"), "--save-latents", "/proc/none/l.safetensors"})), 1, "l.safetensors");
  expect_refused(winnow(with({"-o", "/proc/a.y4m"})), 1, "/proc/a.y4m");
  expect_refused(winnow(with({"-o", path("mean_pool.y4m"), "--compare", "mean_pool"})), 1, "mean_pool.y4m: is written both");
  expect_refused(winnow(with({"-o", path("a.png"), "--sheet", path("./a.png")})), 1, "is written both");
  expect_refused(winnow(with({"--latents", path("l"), "--save-latents", path("./l")})), 1, "is read as --latents and written as");
  expect_refused(winnow(with({"-o", path("a.y4m")})), 1, "no-model");
  std::ofstream(path("s.json")) << R"({"method":"mean_pool"})";
  const tests::Finished over = winnow(with({"-o", path("a.y4m"), "--attention", path("s.json"), "--report", path("s.json")}));
  EXPECT_EQ(over.code, 1);
  EXPECT_THAT(over.err, HasSubstr("is read as --attention and written as --report"));
}

TEST_F(CliErrors, AbsentFfmpegIsFoundOutBeforeTheRun) {
  tests::Program program({"/usr/bin/env", "PATH=", kWinnow, "generate", "--model", path("no-model"), "-p", "x", "-o", path("a.mp4")},
                         folder());
  expect_refused(program.finish(), 1, "install the package \"ffmpeg\"");
}

TEST_F(CliErrors, FullDiskAfterTheRun) {
  if (media::find_program("ffmpeg").empty()) GTEST_SKIP() << "no ffmpeg here";
  for (const char* name : {"a.y4m", "a.mp4"}) {
    std::string command = "ulimit -f 2; exec " + kWinnow;
    for (const std::string& word : small(with_prompt({"-o", path(name)}))) command += " '" + word + "'";
    tests::Program program({"/bin/sh", "-c", command}, folder());
    expect_refused(program.finish(), 1, "File too large");
  }
}

TEST_F(CliErrors, FullDevice) {
  fs::create_symlink("/dev/full", path("a.y4m"));
  const tests::Finished run = winnow(small(with_prompt({"-o", path("a.y4m")})));
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.err, HasSubstr("No space left on device"));
  EXPECT_THAT(listing(), ElementsAre("a.y4m"));
  tests::Program info({"/bin/sh", "-c", kWinnow + " info --no-peak > /dev/full"}, folder());
  EXPECT_EQ(info.finish().code, 1);
  tests::Program help({"/bin/sh", "-c", kWinnow + " --help > /dev/full"}, folder());
  EXPECT_EQ(help.finish().code, 1);
}

TEST_F(CliErrors, CtrlCLeavesNothing) {
  for (const int signal : {SIGINT, SIGTERM}) {
    tests::Program program({kWinnow, "generate", "--model", kModel, "-p", kPrompt[1], "--steps", "200", "-o", path("a.y4m"), "--report",
                            path("r.json"), "-W", "48", "-H", "48", "--frames", "9"},
                           folder());
    ASSERT_TRUE(program.wait_for("denoise 1/"));
    program.send(signal);
    program.send(signal);  // delivered twice at once, as some parents do: still a clean end
    const tests::Finished run = program.finish();
    EXPECT_EQ(run.code, 128 + signal);
    EXPECT_THAT(run.err, HasSubstr("winnow: interrupted"));
    EXPECT_THAT(listing(), IsEmpty());
  }
}

TEST_F(CliErrors, CtrlCEndsTheWaitForAReader) {
  ASSERT_EQ(mkfifo(path("a.y4m").c_str(), 0600), 0);
  tests::Program program({kWinnow, "generate", "--model", kModel, "-p", kPrompt[1], "--steps", "1", "-o", path("a.y4m"), "-W", "16", "-H",
                          "16", "--frames", "1"},
                         folder());
  ASSERT_TRUE(program.wait_for("denoise 1/1"));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // it waits in open() now
  program.send(SIGTERM);
  EXPECT_TRUE(program.wait_for("winnow: interrupted"));
  EXPECT_EQ(program.finish().code, 128 + SIGTERM);
}

TEST_F(CliRun, DryRunWritesNothing) {
  const tests::Finished run = winnow(small(with_prompt({"--dry-run", "-o", path("missing/a.y4m"), "--attention", "mean_pool"})));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("48x48, 9 frames"), HasSubstr("324 tokens"), HasSubstr("high-noise"), HasSubstr("weights"),
                             HasSubstr("depends on content"), HasSubstr("time        about")));
  EXPECT_THAT(listing(), IsEmpty());
}

TEST_F(CliRun, OneIsNotMany) {
  const tests::Finished run = winnow({"generate", "--model",   kModel,     "-p",          kPrompt[1], "-W",       "48",
                                      "-H",       "48",        "--frames", "1",           "--steps",  "1",        "--guidance-scale",
                                      "1",        "--compare", "dense",    "--attention", "sol",      "--dry-run"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr(" 1 frame at"), HasSubstr("1 step, "), HasSubstr("1 high-noise step, then 0 low-noise steps"),
                             HasSubstr("--compare adds 1 setting to it")));
}

TEST_F(CliRun, DryRunLooksAtTheNoise) {
  EXPECT_THAT(winnow(small(with_prompt({"--dry-run", "-s", "7"}))).out, HasSubstr("\nseed        7\n"));
  expect_refused(winnow(small(with_prompt({"--dry-run", "--latents", path("none")}))), 1, "none");
  const auto dry_run = [&](std::int64_t height) {
    const Tensor noise(DType::f32, {1, 48, 9, height, 12});
    write_safetensors(path("noise"), std::vector<NamedTensor>{{"latents", noise}});
    return winnow(small(with_prompt({"--dry-run", "--latents", path("noise")})));
  };
  EXPECT_THAT(dry_run(11).err, HasSubstr("expected [1,48,9,12,12] f32, got [1,48,9,11,12] f32"));
  EXPECT_THAT(dry_run(12).out, HasSubstr("\nlatents     " + path("noise") + "\n"));
}

TEST_F(CliRun, WritesVideoSheetReportAndLatents) {
  const tests::Finished run =
      winnow(small(with_prompt({"-o", path("a.y4m"), "--sheet", path("s.png"), "--report", path("r.json"), "--save-latents",
                                path("l.safetensors"), "-s", "18446744073709551615", "--fps", "8"})));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(listing(), UnorderedElementsAre("a.y4m", "s.png", "r.json", "l.safetensors"));
  EXPECT_THAT(run.out, AllOf(StartsWith("seed        18446744073709551615"), HasSubstr("2 steps"), HasSubstr("density 1.000"),
                             HasSubstr("(requested)"), HasSubstr("high-noise")));
  EXPECT_THAT(run.err, AllOf(HasSubstr("denoise 1/2"), HasSubstr("denoise 2/2")));
  const std::string video = tests::read_file(path("a.y4m"));
  EXPECT_THAT(video, StartsWith("YUV4MPEG2 W48 H48 F8:1 Ip A1:1 C444"));
  EXPECT_EQ(video.size(), video.find('\n') + 1 + 9U * (6U + 3U * 48U * 48U));
  const auto report = nlohmann::json::parse(tests::read_file(path("r.json")));
  EXPECT_EQ(report.at("seed"), 18446744073709551615U);
  EXPECT_EQ(report.at("steps"), 2);
  EXPECT_EQ(report.at("solver"), "euler");  // the model's own values, without which nobody could run the same again
  EXPECT_EQ(report.at("sigma_mode"), "diffusers");
  EXPECT_EQ(report.at("flow_shift"), 5.0);
  EXPECT_EQ(report.at("boundary_ratio"), 0.875);
  const SafetensorsFile latents = SafetensorsFile::open(path("l.safetensors"));
  EXPECT_EQ(latents.at("latents").describe(), "[1,48,9,12,12] f32");
}

TEST_F(CliRun, NoiseFromAFileHasNoSeed) {
  const Tensor noise(DType::f32, {1, 48, 9, 12, 12});
  write_safetensors(path("noise"), std::vector<NamedTensor>{{"latents", noise}});
  const tests::Finished both = winnow(small(with_prompt({"-o", path("a.y4m"), "--latents", path("noise"), "--seed", "3"})));
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.err, HasSubstr("--seed"));
  const tests::Finished run = winnow(
      small(with_prompt({"-o", path("a.y4m"), "--latents", path("noise"), "--report", path("r.json"), "--save-latents", path("l")})));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(StartsWith("latents     " + path("noise") + "\n"), Not(HasSubstr("seed"))));
  const auto report = nlohmann::json::parse(tests::read_file(path("r.json")));
  EXPECT_EQ(report.at("latents"), path("noise"));
  EXPECT_FALSE(report.contains("seed"));
  EXPECT_FALSE(SafetensorsFile::open(path("l")).metadata().contains("seed"));
}

TEST_F(CliRun, SameSeedSameVideoOnAnyNumberOfThreads) {
  ASSERT_EQ(winnow(small(with_prompt({"-o", path("a.y4m"), "--threads", "1"}))).code, 0);
  ASSERT_EQ(winnow(small(with_prompt({"-o", path("b.y4m"), "--threads", "2"}))).code, 0);
  ASSERT_EQ(winnow(small(with_prompt({"-o", path("c.y4m"), "--threads", "2", "-s", "1"}))).code, 0);
  EXPECT_EQ(tests::read_file(path("a.y4m")), tests::read_file(path("b.y4m")));
  EXPECT_NE(tests::read_file(path("a.y4m")), tests::read_file(path("c.y4m")));
}

TEST_F(CliRun, ReportsWhetherTheCacheEverHit) {
  const tests::Finished run =
      winnow({"generate", "--model", kModel, "-p", kPrompt[1], "-W", "16", "-H", "16", "--frames", "1", "--steps", "10", "-o",
              path("a.y4m"), "--report", path("r.json"), "--cache", R"({"method":"first_block","threshold_high":0,"threshold_low":1e6})"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("6 of 20 forwards reused"), HasSubstr("high noise: 0 of 8 forwards reused; computed: 8 disabled")));
  const auto json = nlohmann::json::parse(tests::read_file(path("r.json")));
  EXPECT_FALSE(json.contains("dense"));
  const auto cache = json.at("runs").at(0).at("cache");
  EXPECT_EQ(cache.at("forwards"), 20);
  EXPECT_EQ(cache.at("forwards_computed"), 14);
  EXPECT_EQ(cache.at("hits_high"), 0);
  EXPECT_EQ(cache.at("hits_low"), 6);
  EXPECT_EQ(cache.at("reasons").at("high"), nlohmann::json({{"disabled", 8}}));
  EXPECT_EQ(json.at("runs").at(0).at("steps_run").at(5).at("forwards_reused"), 2);
}

TEST_F(CliRun, CompareWritesEverySettingAndTheSheet) {
  const tests::Finished run =
      winnow(small(with_prompt({"-o", path("video.y4m"), "--attention", "mean_pool", "--compare", "dense", "--compare", "skip_softmax",
                                "--compare", "skip_softmax", "--report", path("report.json")})));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(listing(),
              UnorderedElementsAre("video.y4m", "dense.y4m", "skip_softmax.y4m", "skip_softmax-2.y4m", "side_by_side.png", "report.json"));
  EXPECT_THAT(run.err, HasSubstr("run 8/8 skip_softmax-2"));
  const std::string text = tests::read_file(path("report.json"));
  EXPECT_EQ(text.find("null"), std::string::npos);
  const auto report = nlohmann::json::parse(text);
  EXPECT_GT(report.at("dense").at("seconds"), 0.0);
  ASSERT_EQ(report.at("runs").size(), 3U);
  EXPECT_EQ(report.at("runs").at(0).at("method"), "mean_pool");
  for (const auto& record : report.at("runs")) {
    EXPECT_GT(record.at("seconds"), 0.0);
    EXPECT_GT(record.at("speedup"), 0.0);
    EXPECT_LE(record.at("density"), 1.0);
    EXPECT_LE(record.at("psnr_db"), 100.0);
    EXPECT_LE(record.at("ssim"), 1.0);
    EXPECT_EQ(record.at("per_frame").at("psnr_db").size(), 9U);
  }
  // Twice the same setting: twice the same numbers.
  EXPECT_EQ(report.at("runs").at(1).at("psnr_db"), report.at("runs").at(2).at("psnr_db"));
}

class CliAttendSmall : public Cli {
 protected:
  // The same [600,2,16] under every name: attention that favours what is alike, with some structure over the tokens.
  std::string write_qkv(const std::vector<std::string>& names) {
    Tensor x(DType::f32, {600, 2, 16});
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      x.as<float>()[i] = 3.0F * std::sin(0.01F * static_cast<float>(i / 32) * static_cast<float>(i % 32 + 1));
    }
    std::vector<NamedTensor> tensors;
    for (const std::string& name : names) tensors.push_back({name, x});
    write_safetensors(path("qkv.safetensors"), tensors);
    return path("qkv.safetensors");
  }
};

TEST_F(CliAttendSmall, MeasuresACall) {
  const tests::Finished run = winnow({"attend", "--qkv", write_qkv({"layer5.q", "layer5.k", "layer5.v"}), "--method",
                                      R"({"method":"mean_pool","cdf":0.5})", "--rows", "50", "--repeat", "2", "--json", path("a.json")});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("density"), HasSubstr("rel-L2"), HasSubstr("recall"), HasSubstr("speed-up")));
  const auto json = nlohmann::json::parse(tests::read_file(path("a.json")));
  EXPECT_EQ(json.at("q"), "[1,600,2,16] f32");
  EXPECT_LT(json.at("density"), 1.0);
  EXPECT_LT(json.at("dense_error").at("rel_l2"), 1e-2);
  EXPECT_GT(json.at("recall").at("mass"), 0.2);
  EXPECT_EQ(json.at("rows"), 50);
  EXPECT_EQ(json.at("repeat"), 2);
}

TEST_F(CliAttendSmall, PositionsComeFromTheFileOrTheFlag) {
  const std::string file = write_qkv({"q", "k", "v"});
  const auto attend = [&](const std::string& method, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"attend", "--qkv", file, "--repeat", "1", "--json", path("a.json"), "--method", method};
    words.insert(words.end(), more.begin(), more.end());
    return winnow(words);
  };
  for (const char* method : {"window", R"({"method":"mean_pool","token_order":"cubes"})"}) {
    const tests::Finished unknown = attend(method, {});
    EXPECT_EQ(unknown.code, 1);
    EXPECT_THAT(unknown.err, AllOf(HasSubstr("expected the grid"), HasSubstr("--grid")));
    EXPECT_EQ(attend(method, {"--grid", "6x10x10"}).code, 0) << method;
  }
  const auto json = nlohmann::json::parse(tests::read_file(path("a.json")));
  EXPECT_LT(json.at("density"), 1.0);
  for (const char* wrong : {"6x10x11", "600", "6x10x10x1", "0x10x60", "6x10x"}) {
    const tests::Finished run = attend("window", {"--grid", wrong});
    EXPECT_EQ(run.code, 1);
    EXPECT_THAT(run.err, AllOf(HasSubstr("FxHxW with 600 tokens"), HasSubstr(wrong)));
  }
}

TEST_F(CliAttendSmall, SaysWhatTheGateForced) {
  const tests::Finished run = winnow({"attend", "--qkv", write_qkv({"q", "k", "v"}), "--repeat", "1", "--json", path("a.json"), "--method",
                                      R"({"method":"cosine_gate","theta":1})"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("forced dense 1.0000"));
  EXPECT_EQ(nlohmann::json::parse(tests::read_file(path("a.json"))).at("gated_share"), 1.0);
}

TEST_F(CliAttendSmall, NamesWhatAGpuNeeds) {
  const std::string file = write_qkv({"q", "k", "v"});
  const tests::Finished unknown = winnow({"attend", "--qkv", file, "--device", "cuda:x"});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("device: expected cpu, cuda or cuda:N, got cuda:x"));
  const tests::Finished absent = winnow({"attend", "--qkv", file, "--device", "cuda:1000"});
  EXPECT_EQ(absent.code, 1);
  EXPECT_THAT(absent.err, AnyOf(HasSubstr("needs a build with WINNOW_CUDA=ON"), HasSubstr("cuda:1000 has no executor")));
}

TEST_F(CliAttendSmall, FindsTheTensors) {
  const std::string file = write_qkv({"a.q", "a.k", "a.v", "b.q", "b.k", "b.v", "other"});
  const tests::Finished ambiguous = winnow({"attend", "--qkv", file});
  EXPECT_EQ(ambiguous.code, 1);
  EXPECT_THAT(ambiguous.err, AllOf(HasSubstr("found 2"), HasSubstr("--prefix")));
  EXPECT_EQ(winnow({"attend", "--qkv", file, "--prefix", "b.", "--method", "dense", "--repeat", "1"}).code, 0);
  EXPECT_EQ(winnow({"attend", "--qkv", file, "--keys", "a.q,b.k,other", "--method", "dense", "--repeat", "1"}).code, 0);
  EXPECT_EQ(winnow({"attend", "--qkv", file, "--keys", "a.q,b.k", "--method", "dense"}).code, 2);
  const tests::Finished missing = winnow({"attend", "--qkv", file, "--prefix", "c."});
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.err, HasSubstr("c.q"));
}

TEST_F(CliAttendSmall, SavesThePlanThatItMeasured) {
  const std::string file = write_qkv({"q", "k", "v"});
  EXPECT_EQ(winnow({"attend", "--qkv", file, "--method", "mean_pool", "--repeat", "1", "--save-plan", path("p.safetensors")}).code, 0);
  EXPECT_TRUE(fs::exists(path("p.safetensors")));
  const tests::Finished none =
      winnow({"attend", "--qkv", file, "--method", "dense", "--repeat", "1", "--save-plan", path("d.safetensors")});
  EXPECT_EQ(none.code, 1);
  EXPECT_FALSE(fs::exists(path("d.safetensors")));
}

TEST_F(CliAttendSmall, NoPlanToSaveIsFoundOutFirst) {
  for (const char* method : {"dense", "skip_softmax"}) {
    expect_refused(winnow({"attend", "--qkv", path("none"), "--method", method, "--save-plan", path("p")}), 1,
                   std::string("save-plan: ") + method + " has no plan of its own to save");
  }
}

TEST_F(CliAttendSmall, NoFileIsWrittenTwiceOrOverTheInput) {
  const std::string file = write_qkv({"q", "k", "v"});
  const tests::Finished twice = winnow({"attend", "--qkv", file, "--json", path("a"), "--save-plan", path("./a")});
  EXPECT_EQ(twice.code, 1);
  EXPECT_THAT(twice.err, HasSubstr("is written both as --json and as --save-plan"));
  EXPECT_FALSE(fs::exists(path("a")));
  fs::create_symlink(file, path("link"));
  const tests::Finished over = winnow({"attend", "--qkv", file, "--save-plan", path("link")});
  EXPECT_EQ(over.code, 1);
  EXPECT_THAT(over.err, HasSubstr("is read as --qkv and written as --save-plan"));
  std::ofstream(path("s.json")) << R"({"method":"mean_pool"})";
  const tests::Finished setting = winnow({"attend", "--qkv", file, "--method", path("s.json"), "--json", path("s.json")});
  EXPECT_EQ(setting.code, 1);
  EXPECT_THAT(setting.err, HasSubstr("is read as --method and written as --json"));
}

// What a session would do differently from the call that is measured.
TEST_F(CliAttendSmall, RefusesWhatOneCallCannotShow) {
  const tests::Finished budget =
      winnow({"attend", "--qkv", write_qkv({"q", "k", "v"}), "--method", R"({"method":"subblock","budget":{}})"});
  EXPECT_EQ(budget.code, 1);
  EXPECT_THAT(budget.err, HasSubstr("budget: expected none"));
  const Tensor q(DType::f32, {200, 2, 16});
  const Tensor k(DType::f32, {300, 2, 16});
  write_safetensors(path("cross.safetensors"), std::vector<NamedTensor>{{"q", q}, {"k", k}, {"v", k}});
  const tests::Finished cross = winnow({"attend", "--qkv", path("cross.safetensors"), "--method", "mean_pool"});
  EXPECT_EQ(cross.code, 1);
  EXPECT_THAT(cross.err, HasSubstr("expected as many queries as keys for mean_pool"));
  EXPECT_EQ(winnow({"attend", "--qkv", path("cross.safetensors"), "--method", "dense", "--repeat", "1"}).code, 0);
}

TEST_F(CliAttendSmall, SaysWhatIsNotFinite) {
  const Tensor zero(DType::f32, {70, 1, 4});
  Tensor one(DType::f32, {70, 1, 4});
  one.as<float>()[0] = std::nanf("");
  write_safetensors(path("one.safetensors"), std::vector<NamedTensor>{{"q", one}, {"k", zero}, {"v", zero}});
  EXPECT_THAT(winnow({"attend", "--qkv", path("one.safetensors"), "--repeat", "1"}).err,
              HasSubstr("note: q, k, v: 1 value is NaN or infinite, and so is what attention makes of it\n"));
  Tensor x(DType::f32, {70, 1, 4});
  x.as<float>()[0] = std::nanf("");
  const NamedTensor tensors[] = {{"q", x}, {"k", x}, {"v", x}};
  write_safetensors(path("nan.safetensors"), tensors);
  const tests::Finished run = winnow({"attend", "--qkv", path("nan.safetensors"), "--repeat", "1", "--json", path("a.json")});
  EXPECT_EQ(run.code, 0);
  EXPECT_THAT(run.out, AllOf(HasSubstr("rel-L1 nan "), Not(HasSubstr("-nan"))));
  EXPECT_THAT(run.err, HasSubstr("note: q, k, v: 3 values are NaN or infinite"));
  const auto json = nlohmann::json::parse(tests::read_file(path("a.json")));
  EXPECT_TRUE(json.at("error").empty()) << json.at("error");
}

// Another program's mask, 324 tokens: 3 blocks of 128 queries, 6 of 64 keys.
TEST_F(CliRun, ABlockMaskOfAnotherProgram) {
  const auto write = [&](const std::string& shape, const std::string& keep) {
    std::ofstream(path("mask.npy"), std::ios::binary) << tests::npy_of_bools(shape, keep);
  };
  write("(3, 6)", {1, 1, 0, 0, 0, 1, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0, 1, 1});
  const std::vector<std::string> flags = {"--plan", path("mask.npy"), "--plan-blocks", "128x64"};
  const auto generate = [&](std::vector<std::string> more) {
    more.insert(more.begin(), flags.begin(), flags.end());
    return winnow(small(with_prompt(std::move(more))));
  };
  const tests::Finished run = generate({"-o", path("a.y4m"), "--report", path("r.json")});
  ASSERT_EQ(run.code, 0) << run.err;
  const auto report = nlohmann::json::parse(tests::read_file(path("r.json")));
  EXPECT_LT(report.at("runs").at(0).at("density"), 0.6);
  EXPECT_EQ(report.at("runs").at(0).at("calls").size(), 1U);
  EXPECT_TRUE(report.at("runs").at(0).at("calls").contains("sparse"));
  EXPECT_EQ(generate({"--dry-run"}).code, 0);

  Tensor x(DType::f32, {324, 2, 16});
  const NamedTensor tensors[] = {{"q", x}, {"k", x}, {"v", x}};
  write_safetensors(path("qkv"), tensors);
  const tests::Finished attend = winnow({"attend", "--qkv", path("qkv"), "--plan", path("mask.npy"), "--plan-blocks", "128x64"});
  EXPECT_EQ(attend.code, 0) << attend.err;
  EXPECT_THAT(attend.out, HasSubstr(R"("method":"plan")"));

  const auto error_of = [&](const tests::Finished& refused, int code) {
    EXPECT_EQ(refused.code, code);
    return refused.err;
  };
  EXPECT_THAT(error_of(winnow({"attend", "--qkv", path("qkv"), "--plan", path("mask.npy")}), 1), HasSubstr("block_q"));
  EXPECT_THAT(error_of(winnow({"attend", "--qkv", path("qkv"), "--plan", path("mask.npy"), "--plan-blocks", "128"}), 2),
              HasSubstr("--plan-blocks"));
  EXPECT_THAT(error_of(winnow({"attend", "--qkv", path("qkv"), "--plan-blocks", "128x64"}), 2), HasSubstr("--plan"));
  write("(3, 5)", std::string(15, '\1'));
  EXPECT_THAT(error_of(generate({"-o", path("b.y4m")}), 1), AllOf(HasSubstr("3,6]"), HasSubstr("[3,5] bool")));
  EXPECT_FALSE(fs::exists(path("b.y4m")));
}

TEST_F(CliRun, DryRunWithAPlanOfAClipThatIsTooLargeToMeasure) {
  // 12 x 12 x 33 tokens take a probe of their own size; 24 x 24 x 33 take a smaller one.
  PlanGeometry geometry;
  geometry.H = 2;
  geometry.Sq = geometry.Sk = 24 * 24 * 33;
  TilePlan::dense(geometry, DenseReason::requested).save(path("p.safetensors"));
  const std::vector<std::string> words = {"generate", "--model", kModel, "-p", kPrompt[1], "--dry-run", "--plan", path("p.safetensors")};
  std::vector<std::string> large = words;
  large.insert(large.end(), {"-W", "192", "-H", "192"});
  const tests::Finished run = winnow(large);
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("time        about"));
  const tests::Finished other = winnow(words);
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err, HasSubstr("expected a plan for 4752 tokens, got B=1 H=2 Sq=19008"));
}

TEST_F(CliAttend, BadFiles) {
  expect_refused(winnow({"attend", "--qkv", path("none.safetensors")}), 1, "none.safetensors");
  expect_refused(winnow({"attend", "--qkv", kModel + "/README.md"}), 1, "README.md");
  expect_refused(winnow({"attend", "--qkv", path("x"), "--method", "nothing"}), 1, "nothing");
}

}  // namespace
}  // namespace winnow
