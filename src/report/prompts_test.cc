// What a prompt file says, and what is refused in it.
#include "report/prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace winnow::report {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using tests::message_of;

class Prompts : public tests::FolderTest {
 protected:
  std::vector<Prompt> read(const std::string& text) const { return read_prompts(write("p.txt", text), "compare"); }
};

TEST_F(Prompts, OneALine) {
  const std::vector<Prompt> prompts = read("# a list\n\n  a red ball \r\na star");
  EXPECT_THAT(texts(prompts), ElementsAre("a red ball", "a star"));
  EXPECT_EQ(prompts[0].place, path("p.txt") + ":3");
  EXPECT_EQ(prompts[1].place, path("p.txt") + ":4");
}

TEST_F(Prompts, RefusalsNameTheCallerAndThePlace) {
  EXPECT_EQ(message_of([&] { read("# nothing\n\n"); }), "[compare] " + path("p.txt") + ": expected one prompt a line, found none");
  EXPECT_THAT(message_of([&] { read(""); }), HasSubstr("found none"));
  EXPECT_THAT(message_of([&] { read("a\n\nb\na\n"); }), EndsWith("p.txt:4: the prompt \"a\" is there twice"));
  EXPECT_THAT(message_of([&] { read_prompts("none.txt", "calibrate"); }), HasSubstr("[calibrate] none.txt"));
}

}  // namespace
}  // namespace winnow::report
