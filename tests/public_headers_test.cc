// winnow/winnow.h compiles by itself and leaves nothing out.
#include "winnow/winnow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/program.h"

namespace winnow {
namespace {

TEST(PublicHeaders, OneIncludesAllOthers) {
  const std::filesystem::path folder = WINNOW_SOURCE_DIR "/include/winnow";
  const std::string all = tests::read_file(folder / "winnow.h");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool needs_others_header = name == "dlpack.h";
    if (!entry.is_regular_file() || name == "winnow.h" || needs_others_header) continue;
    EXPECT_THAT(all, ::testing::HasSubstr("#include \"winnow/" + name + "\""));
  }
}

}  // namespace
}  // namespace winnow
