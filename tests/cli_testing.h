// The built command line in a folder of its own.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/program.h"
#include "tests/support/temporary_folder.h"

namespace winnow::tests {

namespace fs = std::filesystem;

inline const std::string kModel = WINNOW_SOURCE_DIR "/models/winnow-tiny";
inline const std::string kWinnow = WINNOW_BINARY_DIR "/winnow";

class Cli : public FolderTest {
 protected:
  Finished winnow(std::vector<std::string> words) const {
    words.insert(words.begin(), kWinnow);
    return Program(words, folder()).finish();
  }
  // A clip that takes a second or two; `more` is appended.
  static std::vector<std::string> small(std::vector<std::string> more) {
    std::vector<std::string> words = {"generate", "--model", kModel, "-W", "48", "-H", "48", "--frames", "9", "--steps", "2"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // One line on stderr that begins like an error, no file left.
  void expect_refused(const Finished& run, int code, const std::string& part) const {
    EXPECT_EQ(run.code, code) << run.err;
    EXPECT_THAT(run.err, ::testing::HasSubstr(part));
    const std::size_t at = run.err.find("winnow: ");
    ASSERT_NE(at, std::string::npos) << run.err;
    EXPECT_EQ(std::count(run.err.begin() + static_cast<std::ptrdiff_t>(at), run.err.end(), '\n'), 1) << run.err;
    EXPECT_THAT(run.out, ::testing::IsEmpty());
    EXPECT_THAT(listing(), ::testing::IsEmpty());
  }
};

}  // namespace winnow::tests
