// Reading, refusing and writing safetensors files.
#include "core/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>

#include "core/json.h"
#include "core/numeric.h"
#include "core/partial_file.h"
#include "tests/support/temporary_folder.h"
#include "winnow/error.h"

namespace winnow {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::byte> file_bytes(const std::string& header, std::size_t data_bytes) {
  std::vector<std::byte> bytes(8 + header.size() + data_bytes);
  const std::uint64_t n = header.size();
  for (unsigned i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(n >> (8 * i) & 0xFFU);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  for (std::size_t i = 0; i < data_bytes; ++i) bytes[8 + header.size() + i] = static_cast<std::byte>(i);
  return bytes;
}

std::string refusal(const std::string& header, std::size_t data_bytes) {
  const auto bytes = file_bytes(header, data_bytes);
  try {
    SafetensorsFile::parse(bytes, "x.safetensors");
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

using Safetensors = tests::FolderTest;

TEST(SafetensorsParse, ReadsEveryDtypeAndMetadata) {
  const auto bytes =
      file_bytes(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
                 R"("a":{"data_offsets":[12,12],"shape":[0,7],"dtype":"F32"},"s":{"dtype":"I64","shape":[],"data_offsets":[12,20]}} )",
                 20);
  const auto file = SafetensorsFile::parse(bytes, "x");
  EXPECT_THAT(file.keys(), ElementsAre("a", "b", "s"));
  EXPECT_EQ(file.at("b").describe(), "[2,3] bf16");
  EXPECT_EQ(file.at("s").rank, 0);
  EXPECT_EQ(file.at("a").numel(), 0);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(*static_cast<const std::uint8_t*>(file.at("s").data), 12);
  EXPECT_FALSE(file.contains("c"));
  EXPECT_THROW(file.at("c"), Error);
}

TEST(SafetensorsParse, RefusesLyingFiles) {
  const std::string t = R"("dtype":"F32","shape":[2],)";
  EXPECT_THAT(refusal(R"({"a":{)" + t + R"("data_offsets":[0,8]}})", 8), "accepted");
  EXPECT_THAT(refusal(R"({"a":{)" + t + R"("data_offsets":[0,8]}})", 7), HasSubstr("x.safetensors: a: data_offsets"));
  EXPECT_THAT(refusal(R"({"a":{)" + t + R"("data_offsets":[0,8]}})", 9), HasSubstr("cover 8 bytes"));
  EXPECT_THAT(refusal(R"({"a":{)" + t + R"("data_offsets":[0,4]}})", 8), HasSubstr("needs 8 bytes"));
  EXPECT_THAT(refusal(R"({"a":{)" + t + R"("data_offsets":[8,0]}})", 8), HasSubstr("data_offsets"));
  EXPECT_THAT(refusal(R"({"a":{)" + t + R"("data_offsets":[1,9]}})", 9), HasSubstr("hole"));
  EXPECT_THAT(refusal(R"({"a":{)" + t + R"("data_offsets":[0,8]},"b":{)" + t + R"("data_offsets":[4,12]}})", 12), HasSubstr("overlap"));
  EXPECT_THAT(refusal(R"({"a":{)" + t + R"("data_offsets":[0,8]},"b":{)" + t + R"("data_offsets":[12,20]}})", 20), HasSubstr("hole"));
  EXPECT_THAT(refusal(R"({"a":{)" + t + R"("data_offsets":[0,8]},"a":{)" + t + R"("data_offsets":[8,16]}})", 16),
              HasSubstr("a: appears twice"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", 1), HasSubstr("dtype \"F4\" is not supported"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[9223372036854775807,4],"data_offsets":[0,4]}})", 4), HasSubstr("too many"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[0,9223372036854775807,4],"data_offsets":[0,0]}})", 0), HasSubstr("too many"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4), HasSubstr("extent"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[184467440737095516150],"data_offsets":[0,4]}})", 4), HasSubstr("unexpected"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,4]}})", 4), HasSubstr("negative"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,4]}})", 4), HasSubstr("unexpected 1.5"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1), HasSubstr("rank"));
}

TEST(SafetensorsParse, RefusesOtherGrammars) {
  EXPECT_THAT(refusal("", 0), HasSubstr("expected '{'"));
  EXPECT_THAT(refusal("[]", 0), HasSubstr("expected '{'"));
  EXPECT_THAT(refusal(" {}", 0), HasSubstr("expected '{'"));
  EXPECT_THAT(refusal("{}", 0), "accepted");
  EXPECT_THAT(refusal("{}  ", 0), "accepted");
  EXPECT_THAT(refusal("{}x", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("{", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal(R"({"a":1})", 0), HasSubstr("unexpected a number"));
  EXPECT_THAT(refusal(R"({"a":{}})", 0), HasSubstr("expected dtype, shape"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","dtype":"U8"}})", 0), HasSubstr("once"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1), HasSubstr("two data_offsets"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1), HasSubstr("unexpected"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1), HasSubstr("unexpected an array"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":0}})", 1), HasSubstr("more"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"k":1}})", 0), HasSubstr("__metadata__"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"k":"1","k":"2"}})", 0), HasSubstr("appears twice"));
  EXPECT_THAT(refusal(R"({"__metadata__":{},"__metadata__":{}})", 0), HasSubstr("appears twice"));
  EXPECT_THAT(refusal("{\"\xff\":{}}", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("{\"a\":" + std::string(1'000'000, '['), 0), HasSubstr("unexpected an array"));
}

TEST(SafetensorsParse, RefusesBadLengths) {
  for (const std::size_t size : {0U, 1U, 7U}) {
    const std::vector<std::byte> bytes(size);
    EXPECT_THROW(SafetensorsFile::parse(bytes, "x"), Error) << size;
  }
  for (const std::uint64_t length : {std::uint64_t{3}, std::uint64_t{100'000'001}, std::numeric_limits<std::uint64_t>::max()}) {
    auto bytes = file_bytes("{}", 0);
    for (unsigned i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(length >> (8 * i) & 0xFFU);
    EXPECT_THROW(SafetensorsFile::parse(bytes, "x"), Error) << length;
  }
  const auto good = file_bytes(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  for (std::size_t n = 0; n < good.size(); ++n) {
    EXPECT_THROW(SafetensorsFile::parse(std::span(good).first(n), "x"), Error) << n;
  }
}

TEST_F(Safetensors, RoundTripsThroughAFile) {
  Tensor a(DType::f32, {2, 3});
  std::iota(a.as<float>(), a.as<float>() + 6, -2.5F);
  Tensor b(DType::bf16, {3});
  for (int i = 0; i < 3; ++i) b.as<bf16>()[i] = to_bf16(static_cast<float>(i) + 0.5F);
  Tensor c(DType::u8, {5});
  const NamedTensor tensors[] = {{"a \"quoted\"", a}, {"b", b}, {"c", c}};
  write_safetensors(path("t"), tensors, {{"k", "v\n"}});
  EXPECT_THAT(listing(), ElementsAre("t"));
  const auto file = SafetensorsFile::open(path("t"));
  EXPECT_THAT(file.keys(), ElementsAre("a \"quoted\"", "b", "c"));
  EXPECT_EQ(std::memcmp(file.at("a \"quoted\"").data, a.view().data, a.bytes()), 0);
  EXPECT_EQ(file.metadata().at("k"), "v\n");
  EXPECT_EQ(file.copy("b", DType::f32).as<float>()[2], 2.5F);
  EXPECT_EQ(file.copy("a \"quoted\"", DType::f64).as<double>()[5], 2.5);
  EXPECT_EQ(to_f32(file.copy("a \"quoted\"", DType::f16).as<f16>()[1]), -1.5F);
  EXPECT_THROW(file.copy("c", DType::f32), Error);
  const std::string first = read_text_file(path("t"), "test");
  const NamedTensor reordered[] = {{"c", c}, {"b", b}, {"a \"quoted\"", a}};
  write_safetensors(path("u"), reordered, {{"k", "v\n"}});
  EXPECT_EQ(read_text_file(path("u"), "test"), first);
}

TEST_F(Safetensors, RefusesToWriteNonsense) {
  Tensor a(DType::f32, {2, 3});
  const NamedTensor twice[] = {{"a", a}, {"a", a}};
  EXPECT_THROW(write_safetensors(path("t"), twice), Error);
  const NamedTensor strided[] = {{"a", a.view().slice(1, 0, 2)}};
  EXPECT_THROW(write_safetensors(path("t"), strided), Error);
  const NamedTensor reserved[] = {{"__metadata__", a}};
  EXPECT_THROW(write_safetensors(path("t"), reserved), Error);
  const NamedTensor bytes[] = {{"\xff", a}};
  EXPECT_THROW(write_safetensors(path("t"), bytes), Error);
  EXPECT_THAT(listing(), IsEmpty());
}

TEST_F(Safetensors, AFailedWriteLeavesNothingBehind) {
  Tensor a(DType::f32, {1024, 1024});
  const NamedTensor tensors[] = {{"a", a}};
  EXPECT_THROW(write_safetensors(path("missing/t"), tensors), Error);
  fs::create_directory(path("folder"));
  EXPECT_THROW(write_safetensors(path("folder"), tensors), Error);  // cannot rename onto a folder
  fs::remove(path("folder"));
  write_safetensors(path("t"), {}, {{"old", "content"}});
  rlimit saved{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &saved), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1U << 20U, saved.rlim_max};  // the disk is full after one of four MB
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(write_safetensors(path("t"), tensors), Error);
  setrlimit(RLIMIT_FSIZE, &saved);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(listing(), ElementsAre("t"));
  EXPECT_EQ(SafetensorsFile::open(path("t")).metadata().at("old"), "content");
}

TEST_F(Safetensors, CountsTheElementsOfAFileThatIsTooLargeToMap) {
  std::string header = R"({"a":{"dtype":"BF16","shape":[4398046511104],"data_offsets":[0,8796093022208]},)";
  header += R"("b":{"dtype":"F32","shape":[2,3],"data_offsets":[8796093022208,8796093022232]}})";
  const std::vector<std::byte> begin = file_bytes(header, 0);
  std::ofstream(path("t"), std::ios::binary).write(reinterpret_cast<const char*>(begin.data()), static_cast<std::streamsize>(begin.size()));
  EXPECT_THROW(SafetensorsFile::count_elements(path("t")), Error);  // the data is missing
  fs::resize_file(path("t"), begin.size() + 8796093022232U);        // a hole, which takes no space
  EXPECT_EQ(SafetensorsFile::count_elements(path("t")), 4398046511104U + 6U);
  EXPECT_THROW(SafetensorsFile::count_elements(path("missing")), Error);
}

TEST_F(Safetensors, TwoWritersOfOneNameDoNotMeet) {
  {
    PartialFile first("test", path("t"));
    PartialFile second("test", path("t"));
    PartialFile third("test", path("t"));
    first.write("first");
    second.write("second, longer");
    third.write("never complete");
    second.commit();
    EXPECT_EQ(read_text_file(path("t"), "test"), "second, longer");
    first.commit();
  }
  EXPECT_EQ(read_text_file(path("t"), "test"), "first");
  EXPECT_THAT(listing(), ElementsAre("t"));
}

TEST_F(Safetensors, WhatAKilledRunLeftIsNoObstacle) {
  const std::string left = PartialFile("test", path("t")).partial_path();
  fs::create_symlink(path("elsewhere"), left);  // planted, even
  write_text_file("test", path("t"), "complete");
  EXPECT_EQ(read_text_file(path("t"), "test"), "complete");
  EXPECT_FALSE(fs::exists(path("elsewhere")));
}

TEST_F(Safetensors, OpenRefusesWhatIsNoFile) {
  EXPECT_THROW(SafetensorsFile::open(path("missing")), Error);
  EXPECT_THROW(SafetensorsFile::open(folder().string()), Error);
  EXPECT_THROW(SafetensorsFile::open("/dev/zero"), Error);
}

TEST(Convert, FollowsStrides) {
  Tensor a(DType::f32, {2, 3, 4});
  std::iota(a.as<float>(), a.as<float>() + 24, 0.0F);
  Tensor b(DType::bf16, {2, 2, 2});
  convert(a.view().slice(1, 1, 3).slice(2, 2, 4), b);
  EXPECT_EQ(to_f32(b.as<bf16>()[0]), 6.0F);
  EXPECT_EQ(to_f32(b.as<bf16>()[7]), 23.0F);
  Tensor c(DType::i32, {2, 2, 2});
  EXPECT_THROW(convert(b, c), Error);
  EXPECT_THROW(convert(b, a), Error);
  Tensor d(DType::f64, {});
  *d.as<double>() = 1.0 / 3;
  Tensor e(DType::f32, {});
  convert(d, e);
  EXPECT_EQ(*e.as<float>(), 1.0F / 3.0F);
}

TEST(Json, RefusesRepeatedKeysAndDepth) {
  EXPECT_EQ(parse_json(R"({"a":{"b":1},"b":[{"b":2}]})", "x", "config").at("b")[0].at("b"), 2);
  EXPECT_THROW(parse_json(R"({"a":1,"a":2})", "x", "config"), Error);
  EXPECT_THROW(parse_json("{\"a\":\"\xff\"}", "x", "config"), Error);
  EXPECT_THROW(parse_json(std::string(100'000, '['), "x", "config"), Error);
  EXPECT_THROW(parse_json("{", "x", "config"), Error);
  EXPECT_THROW(parse_json(std::string("{}\0junk", 7), "x", "config"), Error);
}

}  // namespace
}  // namespace winnow
