// The cache study on a stand-in for the engine: what runs, what is counted, and that a report goes on where it was interrupted.
#include "report/cache_study.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/temporary_folder.h"
#include "winnow/error.h"

namespace winnow::report {
namespace {

using testing::HasSubstr;
using tests::TemporaryFolder;

CacheStudy study() {
  CacheStudy study;
  study.settings = {
      {"uniform-0.10", "uniform", parse_step_cache_config(R"({"method":"first_block","threshold_high":0.1,"threshold_low":0.1})")},
      {"uniform-0.20", "uniform", parse_step_cache_config(R"({"method":"first_block","threshold_high":0.2,"threshold_low":0.2})")},
      {"two-expert-default", "two-expert", parse_step_cache_config("first_block")}};
  return study;
}

// 20 forwards, half of them without guidance. Reuses more, and is further off, the larger threshold_low is.
GenerateResult generate(const GenerateOptions& options) {
  const std::int64_t forwards = options.guidance_scale > 1.0 ? 20 : 10;
  GenerateResult result;
  result.frames = Tensor(DType::f32, {2, 16, 16, 3});
  result.report.seconds = 2.0;
  float off = 0.0F;
  if (options.cache.on()) {
    const auto& cache = std::get<FirstBlockCache>(options.cache.method);
    const auto hits = static_cast<std::int64_t>(static_cast<float>(forwards) * cache.threshold_low);
    result.report.cache.experts[1].by_reason[0] = hits;
    result.report.cache.experts[0].by_reason[static_cast<std::size_t>(CacheReason::changed)] = forwards - hits;
    result.report.seconds = 1.0;
    off = cache.threshold_high;
  }
  for (std::int64_t i = 0; i < result.frames.numel(); ++i) result.frames.as<float>()[i] = 0.5F + off;
  return result;
}

VideoOptions options() {
  VideoOptions options;
  options.prompts = {"a", "b"};
  options.first_seed = 7;
  options.generate.guidance_scale = 3.5;
  return options;
}

TEST(CacheStudy, RunsEverySettingWithAndWithoutGuidance) {
  CacheStudy s = study();
  measure_caches(s, generate, options(), {});
  ASSERT_EQ(s.runs.size(), 2U * 2U * 3U);
  EXPECT_EQ(s.runs[0].forwards_dense, 20);
  EXPECT_EQ(s.runs[0].forwards, 18);
  EXPECT_EQ(s.runs[0].hits_low, 2);
  EXPECT_EQ(s.runs[0].seed, 7U);
  EXPECT_NEAR(*s.runs[0].psnr_db, 20.0, 1e-3);  // 0.1 everywhere
  const std::vector<CacheSummary> summaries = summarise_caches(s);
  ASSERT_EQ(summaries.size(), 6U);
  EXPECT_EQ(summaries[4].setting, "uniform-0.20");
  EXPECT_FALSE(summaries[4].guidance);
  EXPECT_EQ(summaries[4].prompts, 2);
  EXPECT_DOUBLE_EQ(summaries[4].forwards_ratio, 10.0 / 8.0);
  EXPECT_DOUBLE_EQ(summaries[4].speedup, 2.0);
  EXPECT_DOUBLE_EQ(summaries[4].hits_low, 2.0);
  const auto halfway = psnr_at(summaries, {"uniform-0.10", "uniform-0.20"}, true, 0.5 * (20.0 / 18.0 + 20.0 / 16.0));
  EXPECT_NEAR(halfway.value(), 0.5 * (*summaries[0].psnr_db + *summaries[1].psnr_db), 1e-9);
  EXPECT_FALSE(psnr_at(summaries, {"uniform-0.10", "uniform-0.20"}, true, 2.0).has_value());
}

TEST(CacheStudy, ReportsAndResumes) {
  CacheStudy s = study();
  StudyInfo info;
  info.program = "p";
  info.generate = options().generate;
  int prompts = 0;
  std::string unfinished;
  VideoOptions interrupted = options();
  interrupted.prompt_done = [&] {
    if (++prompts == 1) unfinished = to_json(s, info);
  };
  measure_caches(s, generate, interrupted, {});
  const auto json = nlohmann::json::parse(to_json(s, info));
  EXPECT_EQ(json.at("runs").size(), 12U);
  for (const char* key :
       {"setting", "guidance", "prompt", "forwards", "forwards_dense", "seconds", "speedup", "psnr_db", "hits_high", "hits_low"}) {
    EXPECT_TRUE(json.at("runs").at(0).contains(key)) << key;
  }
  EXPECT_EQ(json.at("runs").at(3).at("guidance"), "off");

  CacheStudy again = study();
  EXPECT_EQ(take_over_caches(again, info, unfinished, "r.json"), 3);
  int runs = 0;
  measure_caches(again, [&](const GenerateOptions& one) { return ++runs, generate(one); }, options(), {});
  EXPECT_EQ(runs, 3 * 4);  // of the other three pairs of prompt and guidance
  EXPECT_EQ(again.runs.size(), 12U);
  info.program = "another";
  CacheStudy other = study();
  EXPECT_EQ(take_over_caches(other, info, unfinished, "r.json"), 0);
  EXPECT_THROW(take_over_caches(other, info, "{}", "r.json"), Error);
}

TEST(CacheStudy, TablesAndPicture) {
  CacheStudy s = study();
  measure_caches(s, generate, options(), {});
  const std::string tables = to_markdown(s);
  EXPECT_THAT(tables, HasSubstr("<!-- compare:cache_guided -->"));
  EXPECT_THAT(tables, HasSubstr("| two-expert-default | 1.25 "));
  const auto panels = plot_panels(s);
  ASSERT_EQ(panels.size(), 2U);
  ASSERT_EQ(panels[0].series.size(), 2U);
  EXPECT_EQ(panels[0].series[0].name, "uniform");
  EXPECT_EQ(panels[0].series[0].points.size(), 2U);
}

TEST(CacheStudy, SettingsFile) {
  const TemporaryFolder folder;
  const auto read = [&](const std::string& text) {
    std::ofstream(folder / "s.json") << text;
    return read_cache_settings(folder / "s.json");
  };
  const auto settings = read(R"({"settings":[{"label":"two-expert-x","cache":{"method":"first_block"}}]})");
  EXPECT_EQ(settings.at(0).series, "two-expert");
  EXPECT_NO_THROW(read_cache_settings(std::string(WINNOW_SOURCE_DIR) + "/bench/cache.json"));
  EXPECT_THROW(read(R"({"settings":[]})"), Error);
  EXPECT_THROW(read(R"({"settings":[{"label":"x","cache":{"method":"off"}}]})"), Error);
  EXPECT_THROW(read(R"({"settings":[{"label":"x","cache":{"method":"first_block","x":1}}]})"), Error);
  EXPECT_THROW(read(R"({"settings":[{"label":"x"}]})"), Error);
  EXPECT_THROW(read(R"({"settings":[{"label":"x\ny","cache":{"method":"first_block"}}]})"), Error);
  EXPECT_THROW(read(R"({"settings":[{"label":" ","cache":{"method":"first_block"}}]})"), Error);
  EXPECT_THROW(read(R"({"settings":[{"label":"x","cache":{"method":"first_block"}},{"label":"x","cache":{"method":"first_block"}}]})"),
               Error);
}

}  // namespace
}  // namespace winnow::report
