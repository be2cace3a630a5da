#include "core/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/support/npy.h"
#include "tests/support/temporary_folder.h"
#include "winnow/error.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;
using tests::npy;

constexpr const char* kDict = "{'descr': '|b1', 'fortran_order': False, 'shape': (2, 3), }";

Tensor parse(const std::string& bytes) { return parse_npy(std::as_bytes(std::span(bytes)), "a.npy"); }

std::string refused(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Npy, ReadsBytes) {
  const std::string data("\1\0\0\0\0\1", 6);
  for (const char version : {'\1', '\2', '\3'}) {
    const Tensor tensor = parse(npy(kDict, data, version));
    EXPECT_EQ(tensor.view().describe(), "[2,3] bool");
    EXPECT_EQ(std::string(tensor.as<const char>(), 6), data);
  }
  EXPECT_EQ(parse(npy("{'descr':\"|u1\",'fortran_order':False,'shape':(6,)}", data)).view().describe(), "[6] u8");
  EXPECT_EQ(parse(npy("{'shape': (), 'descr': '|u1', 'fortran_order': False}", "x")).numel(), 1);
  EXPECT_EQ(parse(npy("{'shape': (0, 7), 'descr': '|u1', 'fortran_order': False}", "")).numel(), 0);
}

TEST(Npy, EveryOtherFileIsAnError) {
  const std::string good = npy(kDict, std::string(6, '\0'));
  EXPECT_THAT(refused(""), HasSubstr("a.npy: expected an .npy file"));
  for (std::size_t n = 0; n < good.size(); ++n) EXPECT_THAT(refused(good.substr(0, n)), HasSubstr("a.npy")) << n;
  EXPECT_THAT(refused(good + "x"), HasSubstr("expected 6 bytes of data, got 7"));
  EXPECT_THAT(refused(npy(kDict, std::string(6, '\0'), 4)), HasSubstr("expected format 1 to 3, got 4"));
  const auto header = [](const std::string& dict) { return refused(npy(dict, std::string(6, '\0'))); };
  EXPECT_THAT(header("{'descr': '<f4', 'fortran_order': False, 'shape': (6,)}"), HasSubstr("'|u1' (uint8), got <f4"));
  EXPECT_THAT(header("{'descr': [('a', '|u1')], 'fortran_order': False, 'shape': (6,)}"), HasSubstr("expected"));
  EXPECT_THAT(header("{'descr': '|u1', 'fortran_order': True, 'shape': (6,)}"), HasSubstr("ascontiguousarray"));
  EXPECT_THAT(header("{'descr': '|u1', 'fortran_order': None, 'shape': (6,)}"), HasSubstr("True or False"));
  EXPECT_THAT(header("{'descr': '|u1', 'fortran_order': False, 'shape': (-6,)}"), HasSubstr("sizes"));
  EXPECT_THAT(header("{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999999999999,)}"), HasSubstr("sizes"));
  EXPECT_THAT(header("{'descr': '|u1', 'fortran_order': False, 'shape': (0, 4611686018427387904, 4611686018427387904)}"),
              HasSubstr("at most 2^30"));
  EXPECT_THAT(header("{'descr': '|u1', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,6)}"), HasSubstr("axes"));
  EXPECT_THAT(header("{'descr': '|u1', 'fortran_order': False}"), HasSubstr("shape"));
  EXPECT_THAT(header("{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (6,)}"), HasSubstr("once each"));
  EXPECT_THAT(header("{'descr': '|u1', 'fortran_order': False, 'shape': (6,)} x"), HasSubstr("nothing after"));
  EXPECT_THAT(header("{'descr': '|u1"), HasSubstr("closing quote"));
  EXPECT_THAT(header("['descr']"), HasSubstr("'{'"));
}

class NpyFile : public tests::FolderTest {};

TEST_F(NpyFile, IsKnownByItsStart) {
  std::ofstream(path("a.npy")) << npy(kDict, std::string(6, '\1'));
  std::ofstream(path("b.npy")) << "\x93NUM";
  EXPECT_TRUE(is_npy_file(path("a.npy")));
  EXPECT_FALSE(is_npy_file(path("b.npy")));
  EXPECT_FALSE(is_npy_file(path("c.npy")));
  EXPECT_EQ(read_npy(path("a.npy")).as<const std::uint8_t>()[5], 1);
  EXPECT_THROW(read_npy(path("c.npy")), Error);
}

}  // namespace
}  // namespace winnow
