// What gnuplot is told, and the picture that it draws where it is installed.
#include "media/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>

#include "media/child_program.h"
#include "tests/support/temporary_folder.h"
#include "winnow/error.h"

namespace winnow::media {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<PlotPanel> two_panels() {
  PlotPanel left;
  left.title = "it's `not` a command";
  left.log_y = true;
  left.floor = 0.001;
  left.floor_name = "floor";
  left.series = {{"a", {{0.1, 0.5}, {0.5, std::nan("")}, {0.6, 0.0}, {0.9, 0.1}}}, {"none", {{1.0, -1.0}}}};
  PlotPanel right;
  right.title = "two\nlines";
  right.series = {{"b", {{1.0, 30.0}}}, {"a", {{2.0, 20.0}}}};
  return {left, right};
}

TEST(Plot, ScriptQuotesTextAndLeavesOutWhatCannotBeDrawn) {
  const std::string script = plot_script("/tmp/it's.png", two_panels());
  EXPECT_THAT(script, HasSubstr("set output '/tmp/it''s.png'"));
  EXPECT_THAT(script, HasSubstr("set title 'it''s `not` a command'"));
  EXPECT_THAT(script, HasSubstr("set title 'two lines'"));
  EXPECT_THAT(script, HasSubstr("EOD\n0.1 0.5\n0.9 0.1\nEOD\n"));
  EXPECT_THAT(script, Not(HasSubstr("nan")));
  EXPECT_THAT(script, Not(HasSubstr("$p0_1")));  // "none" has no point left
  EXPECT_THAT(script, HasSubstr("$p1_0"));       // "a" has the same number in both panels
}

TEST(Plot, DrawsAPngAndLeavesNothingElse) {
  if (find_program("gnuplot").empty()) GTEST_SKIP() << "no gnuplot here";
  const tests::TemporaryFolder folder;
  write_plot(folder / "a.png", two_panels());
  std::ifstream in(folder / "a.png", std::ios::binary);
  std::string head(8, '\0');
  in.read(head.data(), 8);
  EXPECT_EQ(head, "\x89PNG\r\n\x1A\n");
  EXPECT_THROW(write_plot(folder / "none/a.png", two_panels()), Error);
  EXPECT_THROW(write_plot(folder / "b.png", {}), Error);
  EXPECT_THAT(folder.listing(), ::testing::ElementsAre("a.png"));
}

}  // namespace
}  // namespace winnow::media
