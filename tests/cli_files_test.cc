// The built program's files: no input is ever written over, whatever names it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "tests/cli_testing.h"
#include "tests/support/variable.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class CliFiles : public tests::Cli {
 protected:
  // Enough of a model for what comes before it is loaded.
  CliFiles() {
    fs::create_directories(path("model/calibration"));
    write("model/model_index.json", "{}");
  }
  std::string write_qkv(const std::string& name) const {
    const Tensor x(DType::f32, {64, 1, 16});
    fs::create_directories(fs::path(path(name)).parent_path());
    write_safetensors(path(name), std::vector<NamedTensor>{{"q", x}, {"k", x}, {"v", x}});
    return path(name);
  }
  std::string error_of(const Words& first, const Words& more) const {
    Words words = first;
    words.insert(words.end(), more.begin(), more.end());
    const tests::Finished run = winnow(words);
    EXPECT_EQ(run.code, 1) << run.out;
    return run.err;
  }
  std::string generate(const Words& more) const { return error_of({"generate", "--model", path("model"), "-p", "x"}, more); }
};

TEST_F(CliFiles, CapturesAreNotWrittenOver) {
  const std::string capture = write_qkv("caps/deep/a.safetensors");
  const std::string before = tests::read_file(capture);
  const Words budget = {"calibrate", "budget", "--captures", path("caps")};
  EXPECT_THAT(error_of(budget, {"-o", capture}), HasSubstr("is read as --captures and written as --output"));
  EXPECT_THAT(error_of(budget, {"-o", path("b.json"), "--report", capture}), HasSubstr("is read as --captures and written as --report"));
  EXPECT_THAT(error_of(budget, {"-o", path("b.json"), "--plot", path("caps/p.png")}),
              HasSubstr("is read as --captures and written as --plot"));
  fs::create_symlink(path("caps"), path("link"));
  EXPECT_THAT(error_of(budget, {"-o", path("link/new.json")}), HasSubstr("is read as --captures and written as --output"));
  for (const std::string folder : {"caps", "caps/", "caps/deep/new"}) {
    EXPECT_THAT(error_of({"compare", "--captures", path("caps"), "--methods", "dense", "--no-plot"}, {"-o", path(folder)}),
                HasSubstr("is read as --captures and written as report.json"));
  }
  EXPECT_FALSE(fs::exists(path("caps/deep/new")));
  EXPECT_EQ(tests::read_file(capture), before);
}

TEST_F(CliFiles, CompareLeavesItsMethodsAlone) {
  write_qkv("caps/a.safetensors");
  const std::string method = write("report.json", R"({"method":"mean_pool"})");
  const Words compare = {"compare", "--captures", path("caps"), "--no-plot", "-o", folder().string(), "--methods"};
  EXPECT_THAT(error_of(compare, {method}), HasSubstr("report.json: is read as --methods and written as report.json"));
  EXPECT_EQ(tests::read_file(method), R"({"method":"mean_pool"})");
  const std::string keep = write("report.md", R"({"keep":[1.0]})");
  EXPECT_THAT(error_of(compare, {nlohmann::json({{"method", "mean_pool"}, {"budgets", keep}}).dump()}),
              HasSubstr(R"(is read as "budgets" of --methods and written as report.md)"));
  const nlohmann::json list = {{"methods", {{{"label", "a"}, {"attention", {{"method", "mean_pool"}, {"profile", keep}}}}}}};
  EXPECT_THAT(error_of({"compare", "--captures", path("caps"), "--no-plot", "-o", folder().string()},
                       {"--settings", write("list.json", list.dump())}),
              HasSubstr(R"(is read as "profile" of --settings and written as report.md)"));
}

TEST_F(CliFiles, CompareCacheLeavesItsCalibrationsAlone) {
  const std::string prompts = write("p.txt", "a red ball\n");
  const std::string calibration = write("report.md", "{}");
  const nlohmann::json cache = {{"method", "magcache"}, {"calibration", calibration}};
  const nlohmann::json list = {{"settings", {{{"label", "a"}, {"cache", cache}}}}};
  EXPECT_THAT(error_of({"compare-cache", "--model", path("model"), "--prompts", prompts, "--no-plot", "-o", folder().string()},
                       {"--settings", write("list.json", list.dump())}),
              HasSubstr(R"(is read as "calibration" of --settings and written as report.md)"));
}

TEST_F(CliFiles, WhatASettingNamesIsNotWrittenOver) {
  const std::string magnitudes = write("m.json", R"({"format":"winnow.magnitude_calibration","version":1,"model":"x","tokens":10,)"
                                                 R"("executor":{"name":"y"},"experts":{"high":{"conditional":[1],"unconditional":[1]}}})");
  const std::string skip = path("skip.json");
  fs::copy(tests::kModel + "/calibration/skip-softmax.json", skip);
  const std::string budget =
      write("b.json", R"({"format":"winnow.budget_calibration","version":1,"model":"","tokens":100,"error":0.09,"executor":)"
                      R"({"name":"x","tile_q":128,"tile_k":64},"experts":{"high":{"kind":"isotonic","points":3,"spearman":0.5,)"
                      R"("ln_max_weight":[-5.0,-3.0,-1.0],"sparsity":[0.1,0.2,0.5]}}})");
  const std::string other = write("other", "x");
  struct Case {
    const char* flag;
    std::string setting, file, key;
  };
  const auto text = [](const nlohmann::json& json) { return json.dump(); };
  const std::vector<Case> cases = {
      {"--attention", text({{"method", "plan"}, {"path", other}}), other, "path"},
      {"--compare", text({{"method", "plan"}, {"path", other}}), other, "path"},
      {"--attention", write("s.json", text({{"method", "subblock"}, {"budgets", other}})), other, "budgets"},
      {"--attention", text({{"method", "sol"}, {"profile", other}}), other, "profile"},
      {"--attention", text({{"method", "skip_softmax"}, {"target_sparsity", 0.1}, {"calibration", skip}}), skip, "calibration"},
      {"--attention", text({{"method", "subblock"}, {"budget", {{"map", budget}}}}), budget, "map"},
      {"--cache", text({{"method", "magcache"}, {"calibration", magnitudes}}), magnitudes, "calibration"}};
  for (const Case& one : cases) {
    const std::string before = tests::read_file(one.file);
    const std::string source = "is read as \"" + one.key + "\" of " + one.flag;
    EXPECT_THAT(generate({one.flag, one.setting, "-o", path("a.y4m"), "--report", one.file}),
                HasSubstr(source + " and written as --report"));
    EXPECT_EQ(tests::read_file(one.file), before);
  }
  const std::string setting = text({{"method", "plan"}, {"path", other}});
  EXPECT_THAT(error_of({"attend", "--qkv", write_qkv("qkv"), "--method", setting}, {"--json", other}),
              HasSubstr(R"(is read as "path" of --method and written as --json)"));
}

TEST_F(CliFiles, TheProfileOfTheMachineIsNotWrittenOver) {
  const std::string profile = write("profile.json", "{}");
  const tests::Variable variable("WINNOW_PROFILE", profile.c_str());
  EXPECT_THAT(error_of({"attend", "--qkv", write_qkv("qkv")}, {"--json", profile}),
              HasSubstr("is read as the cost profile of this machine and written as --json"));
  EXPECT_THAT(generate({"-o", path("a.y4m"), "--report", profile}), HasSubstr("is read as the cost profile"));
  EXPECT_EQ(tests::read_file(profile), "{}");
}

TEST_F(CliFiles, WhatLinksInAFolderLeadToIsNotWrittenOver) {
  const std::string elsewhere = write_qkv("elsewhere/a.safetensors");
  const std::string before = tests::read_file(elsewhere);
  fs::create_directories(path("caps/deep"));
  fs::create_symlink(elsewhere, path("caps/deep/a.safetensors"));
  fs::create_symlink(path("caps/deep"), path("caps/circle"));
  EXPECT_THAT(error_of({"calibrate", "budget", "--captures", path("caps")}, {"-o", elsewhere}),
              HasSubstr("is read as --captures and written as --output"));
  fs::create_directories(path("blobs"));
  const std::string weights = write("blobs/0123", "weights");
  fs::create_symlink(weights, path("model/diffusion_pytorch_model.safetensors"));
  fs::create_directory_symlink(path("blobs"), path("model/transformer"));
  for (const std::string& file : {weights, path("blobs/new")}) {
    EXPECT_THAT(generate({"-o", path("a.y4m"), "--report", file}), HasSubstr("is read as --model and written as --report"));
  }
  EXPECT_EQ(tests::read_file(elsewhere), before);
  EXPECT_EQ(tests::read_file(weights), "weights");
}

TEST_F(CliFiles, NothingIsWrittenIntoAModel) {
  const std::string index = path("model/model_index.json");
  for (const char* flag : {"--save-latents", "--report", "--sheet", "-o"}) {
    const std::string file = std::string(flag) == "--report" ? index : path("model/calibration/a.png");
    const bool is_output = std::string(flag) == "-o";
    const std::string written_as = is_output ? "the output" : flag;
    EXPECT_THAT(generate(is_output ? Words{flag, file} : Words{"-o", path("a.y4m"), flag, file}),
                HasSubstr("is read as --model and written as " + written_as));
  }
  for (const char* what : {"skip-softmax", "magcache", "budget"}) {
    EXPECT_THAT(error_of({"calibrate", what, "--model", path("model"), "-p", "x"}, {"-o", index}),
                HasSubstr("is read as --model and written as --output"));
  }
  EXPECT_THAT(error_of({"capture", "--model", path("model"), "-p", "x"}, {"-o", path("model/captures")}),
              HasSubstr("is read as --model and written as --output"));
  EXPECT_FALSE(fs::exists(path("model/captures")));
  EXPECT_THAT(error_of({"attend", "--qkv", write_qkv("qkv")}, {"--json", index}), HasSubstr("is read as a model and written as --json"));
  EXPECT_EQ(tests::read_file(index), "{}");
}

TEST_F(CliFiles, ACalibrationMayGoToItsPlaceInTheModel) {
  const Words calibrate = {"calibrate", "skip-softmax", "--model", path("model"), "-p", "x"};
  EXPECT_THAT(error_of(calibrate, {}), Not(HasSubstr("is read as")));  // refused later, since it is no model
  EXPECT_THAT(error_of(calibrate, {"-o", path("model/calibration/skip-softmax.json")}), Not(HasSubstr("is read as")));
}

TEST_F(CliFiles, NamesThatNoReportCanHoldAreRefusedBeforeTheRun) {
  const std::string name = path("l\xff.safetensors");
  for (const char* flag : {"--latents", "--plan"}) {
    const std::string error = generate({flag, name, "--save-latents", path("b"), "--report", path("b.json")});
    EXPECT_THAT(error, HasSubstr(std::string("expected a name in UTF-8 for ") + flag));
  }
  EXPECT_THAT(error_of({"generate", "--model", path("m\xff"), "-p", "x"}, {"-o", path("a.y4m")}),
              HasSubstr("expected a name in UTF-8 for --model"));
  EXPECT_THAT(error_of({"capture", "--model", path("model"), "-p", "x", "--latents", name}, {"-o", path("c")}),
              HasSubstr("expected a name in UTF-8 for --latents"));
  EXPECT_THAT(error_of({"attend", "--qkv", name}, {"--json", path("a.json")}), HasSubstr("expected a name in UTF-8 for --qkv"));
}

TEST_F(CliFiles, ADashIsNoFile) {
  EXPECT_THAT(generate({"--save-latents", path("b"), "--report", "-"}), HasSubstr("--report: expected the name of a file, got -"));
  EXPECT_THAT(generate({"--save-latents", "-"}), HasSubstr("--save-latents: expected the name of a file, got -"));
  EXPECT_THAT(error_of({"attend", "--qkv", write_qkv("a.safetensors")}, {"--json", "-"}),
              HasSubstr("--json: expected the name of a file, got -"));
  EXPECT_FALSE(fs::exists("-"));
}

TEST_F(CliFiles, UnfinishedWorkIsAnOutputToo) {
  const std::string prompts = write("c.json.unfinished", "a red ball\n");
  for (const char* what : {"skip-softmax", "magcache", "budget"}) {
    EXPECT_THAT(error_of({"calibrate", what, "--model", path("model"), "--prompts", prompts}, {"-o", path("c.json")}),
                HasSubstr("is read as --prompts and written as the unfinished calibration"));
  }
}

}  // namespace
}  // namespace winnow
