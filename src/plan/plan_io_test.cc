// Saving and loading plans, and files that lie.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <vector>

#include "core/safetensors.h"
#include "winnow/error.h"
#include "winnow/plan.h"

namespace winnow {
namespace {

namespace fs = std::filesystem;

class PlanFile : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / ("winnow_plan_" + std::to_string(::getpid()) + "_" + test->name());
    fs::create_directories(folder_);
    path_ = (folder_ / "plan.safetensors").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  static PlanGeometry geometry() {
    PlanGeometry g;
    g.B = 2;
    g.Sq = 200;
    g.Sk = 300;
    g.key_lengths = {300, 65};
    return g;
  }
  static TilePlan mixed() {
    return PlanBuilder::from_rows(geometry(), Skipped::mean, {{0, 4}, {}, {1}, {0, 1}}, {{1}, {2, 3}, {}, {}}, {{}, {0}, {0}, {}});
  }

  static TilePlan packed() {
    TokenLayout::Parts parts{.num_tokens = 200, .tile_begin = {0, 64, 100, 150}, .document_begin = {0, 2, 3}, .exact = {0, 1, 0}};
    for (std::int32_t i = 0; i < 150; ++i) parts.tokens.push_back((i * 3 + 50) % 200);
    PlanGeometry g;
    g.Sq = g.Sk = 200;
    g.query_layout = g.key_layout = std::make_shared<const TokenLayout>(parts);
    return PlanBuilder::from_rows(g, Skipped::mean, {{1}, {0, 1}, {}});
  }

  // What mixed() is saved as, to be falsified.
  struct Contents {
    std::map<std::string, std::string> metadata;
    std::map<std::string, std::vector<std::int64_t>> i64;
    std::map<std::string, std::vector<std::int32_t>> i32;
    std::map<std::string, std::vector<std::uint8_t>> u8;
  };
  Contents contents(const TilePlan& plan) const {
    plan.save(path_);
    const SafetensorsFile file = SafetensorsFile::open(path_);
    Contents c;
    c.metadata = file.metadata();
    for (const std::string& key : file.keys()) {
      const TensorView view = file.at(key);
      if (view.dtype == DType::i64) {
        c.i64[key].assign(view.as<std::int64_t>(), view.as<std::int64_t>() + view.numel());
      } else if (view.dtype == DType::u8) {
        c.u8[key].assign(view.as<std::uint8_t>(), view.as<std::uint8_t>() + view.numel());
      } else {
        c.i32[key].assign(view.as<std::int32_t>(), view.as<std::int32_t>() + view.numel());
      }
    }
    return c;
  }
  void write(const Contents& c) const {
    std::vector<NamedTensor> tensors;
    for (const auto& [key, values] : c.i64) {
      tensors.push_back({key, TensorView(values.data(), DType::i64, {static_cast<std::int64_t>(values.size())})});
    }
    for (const auto& [key, values] : c.i32) {
      tensors.push_back({key, TensorView(values.data(), DType::i32, {static_cast<std::int64_t>(values.size())})});
    }
    for (const auto& [key, values] : c.u8) {
      tensors.push_back({key, TensorView(values.data(), DType::u8, {static_cast<std::int64_t>(values.size())})});
    }
    write_safetensors(path_, tensors, c.metadata);
  }
  template <class Lie>
  void refuses(const char* expected, Lie lie, const TilePlan& plan = mixed()) {
    Contents c = contents(plan);
    lie(c);
    write(c);
    try {
      TilePlan::load(path_);
      ADD_FAILURE() << "accepted a file with a wrong " << expected;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(expected));
      EXPECT_THAT(error.what(), testing::HasSubstr(path_));
    }
  }

  fs::path folder_;
  std::string path_;
};

TEST_F(PlanFile, RoundTrip) {
  const TilePlan plan = mixed();
  plan.save(path_);
  const TilePlan loaded = TilePlan::load(path_);
  EXPECT_TRUE(loaded == plan);
  EXPECT_EQ(loaded.geometry(), plan.geometry());
  EXPECT_EQ(loaded.skipped(), Skipped::mean);
  EXPECT_FALSE(loaded.is_identity());
}

TEST_F(PlanFile, DensePlansStaySmallAndKeepTheirReason) {
  PlanGeometry g;
  g.Sq = g.Sk = 75600;
  TilePlan::dense(g, DenseReason::skip_first_steps).save(path_);
  EXPECT_LT(fs::file_size(path_), 1000U);
  const TilePlan loaded = TilePlan::load(path_);
  EXPECT_TRUE(loaded.is_identity());
  EXPECT_EQ(loaded.reason(), DenseReason::skip_first_steps);
  EXPECT_EQ(loaded.tiles(Tier::refine, 3).size(), 1182U);
}

TEST_F(PlanFile, EmptyProblems) {
  const TilePlan plan = PlanBuilder::from_rows(PlanGeometry{}, Skipped::drop, {});
  plan.save(path_);
  EXPECT_TRUE(TilePlan::load(path_) == plan);
}

TEST_F(PlanFile, WrongMetadata) {
  refuses("format", [](Contents& c) { c.metadata["format"] = "tile_plan"; });
  refuses("version", [](Contents& c) { c.metadata["version"] = "2"; });
  for (const char* key : {"format", "version", "B", "H", "Sq", "Sk", "tile_q", "tile_k", "mean_group", "form", "skipped", "reason"}) {
    refuses(key, [key](Contents& c) { c.metadata.erase(key); });
    refuses(key, [key](Contents& c) { c.metadata[key] = "1x"; });
  }
  refuses("surprise", [](Contents& c) { c.metadata["surprise"] = "1"; });
  refuses("Sk", [](Contents& c) { c.metadata["Sk"] = "-1"; });
  refuses("Sq", [](Contents& c) { c.metadata["Sq"] = "9223372036854775807"; });
  refuses("query tiles", [](Contents& c) {
    c.metadata["H"] = "1048576";
    c.metadata["Sq"] = "1099511627776";
  });
  refuses("mean_group", [](Contents& c) { c.metadata["mean_group"] = "48"; });
  refuses("tile_q", [](Contents& c) { c.metadata["tile_q"] = "0"; });
  refuses("tile_q", [](Contents& c) { c.metadata["tile_q"] = "4294967424"; });
  refuses("refine", [](Contents& c) { c.metadata["Sq"] = "300"; });  // three rows per head, offsets for two
  refuses("key_lengths", [](Contents& c) { c.metadata["Sk"] = "299"; });
}

TEST_F(PlanFile, WrongLists) {
  refuses("refine.offsets", [](Contents& c) { c.i64.erase("refine.offsets"); });
  refuses("skim.tiles", [](Contents& c) { c.i32.erase("skim.tiles"); });
  refuses("skim.tiles", [](Contents& c) { c.i64.erase("skim.offsets"); });
  refuses("refine.offsets", [](Contents& c) { c.i64["refine.offsets"][0] = 1; });
  refuses("refine.offsets", [](Contents& c) { c.i64["refine.offsets"][1] = 1000; });
  refuses("refine.offsets", [](Contents& c) { c.i64["refine.offsets"][1] = -1; });
  refuses("refine.offsets", [](Contents& c) { c.i64["refine.offsets"].pop_back(); });
  refuses("refine.offsets", [](Contents& c) { c.i64["refine.offsets"].clear(); });
  refuses("refine", [](Contents& c) { c.i32["refine.tiles"].push_back(0); });
  refuses("refine row 0", [](Contents& c) { c.i32["refine.tiles"][1] = 5; });      // past the last tile
  refuses("refine row 3", [](Contents& c) { c.i32["refine.tiles"].back() = 2; });  // past batch entry 1's keys
  refuses("refine row 0", [](Contents& c) { c.i32["refine.tiles"][0] = -1; });
  refuses("listed twice", [](Contents& c) { c.i32["skim.tiles"][0] = 4; });
  refuses("key_lengths", [](Contents& c) { c.i64["key_lengths"] = {301, 5}; });
  refuses("key_lengths", [](Contents& c) { c.i64["key_lengths"].clear(); });
  refuses("surprise", [](Contents& c) { c.i32["surprise"] = {1}; });
  refuses("skipped", [](Contents& c) { c.metadata["form"] = "dense"; });
  refuses("unknown tensor", [](Contents& c) {
    c.metadata["form"] = "dense";
    c.metadata["skipped"] = "drop";
  });
  refuses("refine.tiles", [](Contents& c) {
    c.i64["refine.tiles"] = {0, 4, 1, 0, 1};
    c.i32.erase("refine.tiles");
  });
}

TEST_F(PlanFile, Layouts) {
  const TilePlan plan = packed();
  plan.save(path_);
  const TilePlan loaded = TilePlan::load(path_);
  EXPECT_TRUE(loaded == plan);
  EXPECT_EQ(*loaded.geometry().key_layout, *plan.geometry().key_layout);
  TilePlan::dense(plan.geometry(), DenseReason::requested).save(path_);
  EXPECT_EQ(TilePlan::load(path_).geometry(), plan.geometry());

  const auto refuses_packed = [&](const char* expected, auto change) { refuses(expected, change, packed()); };
  refuses_packed("key_layout.tokens", [](Contents& c) { c.i32["key_layout.tokens"][3] = 200; });
  refuses_packed("key_layout.tokens", [](Contents& c) { c.i32["key_layout.tokens"][3] = c.i32["key_layout.tokens"][4]; });
  refuses_packed("query_layout.tile_begin", [](Contents& c) { c.i32["query_layout.tile_begin"].back() = 149; });
  refuses_packed("query_layout.exact", [](Contents& c) { c.u8["query_layout.exact"].pop_back(); });
  refuses_packed("query_layout.exact", [](Contents& c) { c.u8["query_layout.exact"][0] = 2; });
  refuses_packed("key_layout.document_begin", [](Contents& c) { c.i32["key_layout.document_begin"] = {0, 3, 2}; });
  refuses_packed("key_layout.document_begin", [](Contents& c) { c.i32.erase("key_layout.document_begin"); });
  refuses_packed("documents", [](Contents& c) { c.i32["key_layout.document_begin"] = {0, 3}; });
  refuses_packed("key_layout", [](Contents& c) { c.metadata["tile_k"] = c.metadata["mean_group"] = "32"; });
  refuses_packed("num_tokens", [](Contents& c) { c.metadata["Sk"] = "99999999999"; });
  refuses_packed("exact tiles", [](Contents& c) { c.i32["refine.tiles"][0] = 0; });
  refuses_packed("refine row 0", [](Contents& c) { c.i32["refine.tiles"][0] = 2; });
  refuses_packed("key_lengths", [](Contents& c) { c.i64["key_lengths"] = {150}; });
}

TEST_F(PlanFile, OtherFilesAndFoldersAreRefused) {
  EXPECT_THROW(TilePlan::load(path_), Error);
  EXPECT_THROW(TilePlan::load(folder_.string()), Error);
  EXPECT_THROW(TilePlan::load(std::span<const std::byte>(), "nothing"), Error);
  EXPECT_THROW(mixed().save((folder_ / "missing" / "plan").string()), Error);
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace winnow
