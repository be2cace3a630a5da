// tools/check_layers.py accepts this tree and refuses copies of it with one wrong line added.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

struct Outcome {
  int status = -1;
  std::string output;
};

Outcome check(const fs::path& root) {
  const std::string command = "python3 '" WINNOW_SOURCE_DIR "/tools/check_layers.py' '" + root.string() + "' 2>&1";
  Outcome outcome;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer;
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) outcome.output.append(buffer.data(), n);
  const int status = ::pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

class CheckLayers : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    copy_ = fs::temp_directory_path() / ("winnow_layers_" + std::to_string(::getpid()) + "_" + test->name());
    fs::create_directories(copy_);
    for (const char* folder : {"src", "include"}) {
      fs::copy(fs::path(WINNOW_SOURCE_DIR) / folder, copy_ / folder, fs::copy_options::recursive);
    }
  }
  void TearDown() override { fs::remove_all(copy_); }

  // Appends text to a file of the copy (which may be new) and expects a refusal that names it.
  void refuses(const std::string& path, const std::string& text, const std::string& reason) {
    const fs::path file = copy_ / path;
    const bool existed = fs::exists(file);
    fs::create_directories(file.parent_path());
    const auto size = existed ? fs::file_size(file) : 0;
    std::ofstream(file, std::ios::app) << text;
    const Outcome outcome = check(copy_);
    EXPECT_EQ(outcome.status, 1) << path << ": " << text;
    EXPECT_THAT(outcome.output, HasSubstr(path + ":")) << text;
    EXPECT_THAT(outcome.output, HasSubstr(reason)) << text;
    if (existed) {
      fs::resize_file(file, size);
    } else {
      fs::remove(file);
    }
  }

  fs::path copy_;
};

TEST_F(CheckLayers, ThisTreePasses) {
  const Outcome outcome = check(WINNOW_SOURCE_DIR);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.output, "");
}

TEST_F(CheckLayers, SelectMustNotIncludeExec) {
  refuses("src/select/mean_pool.cc", "#include \"exec/registry.h\"\n", "select must not include exec/registry.h");
  refuses("src/select/mean_pool.cc", "  #  include <exec/registry.h>  // why\n", "select must not include exec/registry.h");
  refuses("src/select/mean_pool.cc", "#include \"winnow/attend.h\"\n", "belongs to exec");
  refuses("src/select/new_test.cc", "#include \"exec/registry.h\"\n", "select must not include");  // tests obey their folder's rule
}

TEST_F(CheckLayers, OtherEdgesOfTheTable) {
  refuses("src/exec/attend.cc", "#include \"select/ranking.h\"\n", "exec must not include");
  refuses("src/plan/tile_plan.cc", "#include \"winnow/select.h\"\n", "belongs to select");
  refuses("src/prep/block_stats.cc", "#include \"plan/storage.h\"\n", "prep must not include");
  refuses("src/core/env.cc", "#include \"winnow/session.h\"\n", "belongs to run");
  refuses("cli/new.cc", "#include \"select/ranking.h\"\n", "cli must not include");
  refuses("src/surprise/new.cc", "\n", "not in the table");
}

TEST_F(CheckLayers, WaysAroundTheTable) {
  refuses("src/select/mean_pool.cc", "#include \"../exec/registry.h\"\n", "path from src/");
  refuses("src/select/mean_pool.cc", "#define H \"exec/registry.h\"\n#include H\n", "macro");
  refuses("src/select/mean_pool.cc", "#include \"ranking.h\"\n", "start with a folder");
  refuses("src/select/mean_pool.cc", "#include \"select/missing.h\"\n", "does not exist");
}

TEST_F(CheckLayers, TestSupportIsForTestsAndKnowsNoStage) {
  const std::string use = "#include \"tests/support/temporary_folder.h\"\n";
  refuses("src/select/mean_pool.cc", use, "start with a folder");
  refuses("tests/support/new.h", "#include \"exec/registry.h\"\n", "tests/support must not include exec/registry.h");
  std::ofstream(copy_ / "src/select/new_test.cc") << use;
  EXPECT_EQ(check(copy_).output, "");
}

TEST_F(CheckLayers, CommentsAreNotIncludes) {
  std::ofstream(copy_ / "src/select/mean_pool.cc", std::ios::app)
      << "// #include \"exec/registry.h\"\n/*\n#include \"exec/registry.h\"\n*/\n";
  EXPECT_EQ(check(copy_).output, "");
}

TEST_F(CheckLayers, PublicHeadersNeedTheStandardLibraryOnly) {
  for (const char* header : {"cuda_runtime.h", "nlohmann/json.hpp", "dnnl.hpp", "core/threads.h", "cuda"}) {
    refuses("include/winnow/plan.h", "#include <" + std::string(header) + ">\n", "standard library only");
  }
}

TEST_F(CheckLayers, CyclesAndLongFiles) {
  refuses("src/device/cpu/features.h", "#include \"prep/block_stats.h\"\n", "closes the cycle");
  refuses("src/select/long.cc", std::string(801, '\n'), "the limit is 800");
}

TEST_F(CheckLayers, TooManyFilesOfInstantiations) {
  const fs::path folder = copy_ / "src/exec/cuda/inst";
  for (auto have = std::distance(fs::directory_iterator(folder), fs::directory_iterator()); have < 24; ++have) {
    std::ofstream(folder / std::to_string(have).append(".cu")) << "\n";
  }
  refuses("src/exec/cuda/inst/z.cu", "\n", "more than 24 files");
}

}  // namespace
