#include "winnow/block_mask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "tests/support/npy.h"
#include "tests/support/temporary_folder.h"
#include "winnow/error.h"

namespace winnow {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::vector<int> tiles(const TilePlan& plan, std::int64_t row) {
  const auto list = plan.tiles(Tier::refine, row);
  return {list.begin(), list.end()};
}

class BlockMasks : public tests::FolderTest {
 protected:
  BlockMask mask_of(std::initializer_list<std::int64_t> shape, std::vector<std::uint8_t> values, int block_q, int block_k) {
    values_ = std::move(values);
    return {TensorView(values_.data(), DType::u8, shape), block_q, block_k};
  }
  std::vector<std::uint8_t> values_;
};

TEST_F(BlockMasks, BlocksBecomeTheTilesTheyCover) {
  // 300 queries are 2 blocks of 256 and 3 tiles of 128; 300 keys are 3 blocks of 128 and 5 tiles of 64, the last one short.
  const BlockMask mask = mask_of({2, 3}, {1, 0, 1, 0, 1, 0}, 256, 128);
  const TilePlan plan = plan_from_block_mask(mask, {.B = 2, .H = 2, .Sq = 300, .Sk = 300});
  for (std::int64_t head = 0; head < 4; ++head) {
    EXPECT_THAT(tiles(plan, 3 * head), ElementsAre(0, 1, 4));
    EXPECT_THAT(tiles(plan, 3 * head + 1), ElementsAre(0, 1, 4));
    EXPECT_THAT(tiles(plan, 3 * head + 2), ElementsAre(2, 3));
  }
  EXPECT_EQ(plan.skipped(), Skipped::drop);
  EXPECT_EQ(plan_from_block_mask(mask, {.Sq = 300, .Sk = 300}, Skipped::mean).skipped(), Skipped::mean);
}

TEST_F(BlockMasks, HeadsAndBatchEntriesHaveTheirOwnOrShareOne) {
  const PlanGeometry g = {.B = 2, .H = 2, .Sq = 128, .Sk = 128};
  const std::vector<std::uint8_t> four = {1, 0, 0, 1, 1, 1, 0, 0};
  const TilePlan own = plan_from_block_mask(mask_of({2, 2, 1, 2}, four, 128, 64), g);
  EXPECT_THAT(tiles(own, 0), ElementsAre(0));
  EXPECT_THAT(tiles(own, 1), ElementsAre(1));
  EXPECT_THAT(tiles(own, 2), ElementsAre(0, 1));
  EXPECT_THAT(tiles(own, 3), IsEmpty());
  const TilePlan per_batch = plan_from_block_mask(mask_of({2, 1, 1, 2}, {1, 0, 0, 1}, 128, 64), g);
  EXPECT_THAT(tiles(per_batch, 1), ElementsAre(0));
  EXPECT_THAT(tiles(per_batch, 2), ElementsAre(1));
  const TilePlan per_head = plan_from_block_mask(mask_of({2, 1, 2}, {1, 0, 0, 1}, 128, 64), g);
  EXPECT_THAT(tiles(per_head, 2), ElementsAre(0));
  EXPECT_THAT(tiles(per_head, 3), ElementsAre(1));
}

TEST_F(BlockMasks, StridesAndBoolsAndShortBatchEntries) {
  const bool values[] = {true, false, false, true, true, true};  // [Gk=3, Gq=2], transposed
  const std::int64_t shape[] = {2, 3};
  const std::int64_t strides[] = {1, 2};
  const BlockMask mask = {TensorView::strided(const_cast<bool*>(values), DType::boolean, shape, strides, 2), 128, 64};
  const TilePlan plan = plan_from_block_mask(mask, {.B = 2, .Sq = 256, .Sk = 192, .key_lengths = {192, 70}});
  EXPECT_THAT(tiles(plan, 0), ElementsAre(0, 2));
  EXPECT_THAT(tiles(plan, 1), ElementsAre(1, 2));
  EXPECT_THAT(tiles(plan, 2), ElementsAre(0));
  EXPECT_THAT(tiles(plan, 3), ElementsAre(1));
}

TEST_F(BlockMasks, EmptySequences) {
  const TilePlan plan = plan_from_block_mask(mask_of({0, 0}, {}, 128, 64), {.Sq = 0, .Sk = 0});
  EXPECT_EQ(plan.geometry().rows(), 0);
  EXPECT_THAT(tiles(plan_from_block_mask(mask_of({1, 0}, {}, 128, 64), {.Sq = 5, .Sk = 0}), 0), IsEmpty());
}

TEST_F(BlockMasks, WhatDoesNotFitIsNamed) {
  const PlanGeometry g = {.B = 2, .H = 4, .Sq = 300, .Sk = 300};
  const auto refused = [&](const BlockMask& mask, PlanGeometry geometry) {
    return message([&] { plan_from_block_mask(mask, std::move(geometry)); });
  };
  const TensorView nothing(static_cast<void*>(nullptr), DType::u8, {3, 3});
  EXPECT_THAT(refused({.keep = nothing, .block_q = 128, .block_k = 128}, {.Sq = 300, .Sk = 300}),
              HasSubstr("mask: expected [3,3] u8 in memory, got a null pointer"));
  EXPECT_THAT(refused(mask_of({3, 3}, std::vector<std::uint8_t>(9), 128, 128), {.Sq = 400, .Sk = 300}),
              AllOf(HasSubstr("[1 or 1,1 or 1,4,3]"), HasSubstr("128x128"), HasSubstr("[400,300]"), HasSubstr("[3,3] u8")));
  EXPECT_THAT(refused(mask_of({3, 3, 3}, std::vector<std::uint8_t>(27), 128, 128), g), HasSubstr("4 or 1"));
  EXPECT_THAT(refused(mask_of({4, 4, 3, 3}, std::vector<std::uint8_t>(144), 128, 128), g), HasSubstr("2 or 1"));
  EXPECT_THAT(refused(mask_of({9}, std::vector<std::uint8_t>(9), 128, 128), g), HasSubstr("[9] u8"));
  EXPECT_THAT(refused(mask_of({3, 3}, {0, 0, 0, 0, 255, 0, 0, 0, 0}, 128, 128), g), HasSubstr("mask[0,0,1,1]: expected 0 or 1, got 255"));
  EXPECT_THAT(refused(mask_of({5, 5}, std::vector<std::uint8_t>(25), 64, 64), g),
              HasSubstr("block_q: expected a multiple of the plan's tile, 128"));
  EXPECT_THAT(refused(mask_of({3, 10}, std::vector<std::uint8_t>(30), 128, 32), g), HasSubstr("block_k: expected a multiple"));
  EXPECT_THAT(refused(mask_of({3, 3}, std::vector<std::uint8_t>(9), 0, 128), g), HasSubstr("block_q: expected 1 to 65536, got 0"));
  const float numbers[9] = {};
  EXPECT_THAT(refused({TensorView(numbers, DType::f32, {3, 3}), 128, 128}, g), HasSubstr("bool or u8, got f32"));
}

TEST_F(BlockMasks, TilesDivideBlocks) {
  EXPECT_EQ(mask_tile(128, 128), 128);
  EXPECT_EQ(mask_tile(256, 128), 128);
  EXPECT_EQ(mask_tile(64, 128), 64);
  EXPECT_EQ(mask_tile(192, 128), 192);
}

TEST_F(BlockMasks, SafetensorsStateTheirBlocksOrAreToldThem) {
  Tensor keep(DType::boolean, {1, 2, 3});
  keep.as<std::uint8_t>()[4] = 1;
  const NamedTensor named[] = {{"mask", keep}};
  write_safetensors(path("sizes.safetensors"), named, {{"block_q", "128"}, {"block_k", "64"}});
  write_safetensors(path("bare.safetensors"), named);
  const LoadedBlockMask stated = load_block_mask(path("sizes.safetensors"));
  EXPECT_EQ(stated.mask.block_q, 128);
  EXPECT_EQ(stated.mask.block_k, 64);
  EXPECT_EQ(stated.mask.keep.describe(), keep.view().describe());
  EXPECT_EQ(stated.mask.keep.as<std::uint8_t>()[4], 1);
  EXPECT_EQ(load_block_mask(path("bare.safetensors"), 64, 32).mask.block_k, 32);
  EXPECT_THAT(message([&] { load_block_mask(path("sizes.safetensors"), 64, 0); }), HasSubstr("block_q: expected the file's 128, got 64"));
  EXPECT_THAT(message([&] { load_block_mask(path("bare.safetensors"), 64, 0); }),
              AllOf(HasSubstr("bare.safetensors"), HasSubstr("block_k")));
  write_safetensors(path("odd.safetensors"), named, {{"block_q", "12 8"}, {"block_k", "64"}});
  EXPECT_THAT(message([&] { load_block_mask(path("odd.safetensors")); }), HasSubstr("\"12 8\""));
}

TEST_F(BlockMasks, OtherFilesAreRefused) {
  const Tensor numbers(DType::f32, {2, 2});
  const NamedTensor wrong_type[] = {{"mask", numbers}};
  write_safetensors(path("f32.safetensors"), wrong_type);
  const NamedTensor other_name[] = {{"keep", numbers}};
  write_safetensors(path("name.safetensors"), other_name);
  EXPECT_THAT(message([&] { load_block_mask(path("f32.safetensors"), 1, 1); }), HasSubstr("BOOL or U8"));
  EXPECT_THAT(message([&] { load_block_mask(path("name.safetensors"), 1, 1); }), HasSubstr("the tensor \"mask\""));
  EXPECT_THAT(message([&] { load_block_mask(path("none.npy"), 1, 1); }), HasSubstr("none.npy"));
}

// The example of docs/plan-format.md: the bytes that numpy.save() writes for it.
TEST_F(BlockMasks, TheDocumentedExample) {
  constexpr std::int64_t kRows = 38;
  constexpr std::int64_t kColumns = 75;
  std::string data;
  for (std::int64_t i = 0; i < kRows; ++i) {
    for (std::int64_t j = 0; j < kColumns; ++j) data += static_cast<char>(j >= std::max<std::int64_t>(0, 2 * i - 8) && j < 2 * i + 10);
  }
  std::ofstream(path("mask.npy"), std::ios::binary) << tests::npy_of_bools("(1, 1, 38, 75)", data);
  const LoadedBlockMask loaded = load_block_mask(path("mask.npy"), 128, 64);
  const TilePlan plan = plan_from_block_mask(loaded.mask, {.H = 2, .Sq = 4752, .Sk = 4752});
  EXPECT_THAT(tiles(plan, 0), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(tiles(plan, 38 + 37).front(), 66);
  EXPECT_EQ(tiles(plan, 38 + 37).back(), 74);
}

}  // namespace
}  // namespace winnow
