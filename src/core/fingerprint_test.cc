#include "core/fingerprint.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/temporary_folder.h"
#include "winnow/error.h"

namespace winnow {
namespace {

using FingerprintTest = tests::FolderTest;

TEST_F(FingerprintTest, IsFnv1a) {
  Fingerprint empty;
  EXPECT_EQ(empty.text(), "cbf29ce484222325");
  Fingerprint letter;
  letter.add("a", 1);
  EXPECT_EQ(letter.text(), "af63dc4c8601ec8c");  // the algorithm's own test vector
}

TEST_F(FingerprintTest, OfAFileIsThatOfItsContents) {
  const std::string contents(200'001, 'x');  // more than a block
  Fingerprint whole;
  whole.add(contents.data(), contents.size());
  EXPECT_EQ(file_fingerprint(write("file", contents), "test"), whole.text());
  EXPECT_THROW(file_fingerprint(path("none"), "test"), Error);
}

}  // namespace
}  // namespace winnow
