// Lists of methods, knobs, videos of many prompts, summaries and what is written: with a generator and densities that are made up.
#include "report/study.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/fit.h"
#include "report/study_text.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"
#include "winnow/error.h"

namespace winnow::report {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using tests::message_of;

class Files : public tests::FolderTest {
 protected:
  std::string write(const std::string& text) const { return FolderTest::write("file", text); }
};
using MethodLists = Files;

MethodEntry mean_pool_cdf() {
  return {.label = "pool", .attention = R"({"method":"mean_pool"})", .knob = Knob{.key = "cdf", .sparse = 0.01, .dense = 1.0}};
}

float cdf_of(const AttentionConfig& config) { return std::get<MeanPool>(config.method).cdf; }

TEST_F(MethodLists, ReadsMethodsWithAndWithoutKnobs) {
  const MethodList list = read_method_list(write(R"({"densities":[0.5,0.25],"video_densities":[0.5],"methods":[
      {"attention":{"method":"skip_softmax"},"knob":"threshold","range":[0.5,1e-6],"log":true,"densities":[0.9],"video_densities":[]},
      {"label":"late","attention":{"method":"mean_pool"},"knob":"min_seq_len","range":[0,100]},
      {"label":"fixed","attention":{"method":"dense"}}]})"));
  check_methods(list);
  EXPECT_THAT(list.densities, ElementsAre(0.5, 0.25));
  ASSERT_EQ(list.methods.size(), 3U);
  EXPECT_EQ(list.methods[0].label, "skip_softmax");
  EXPECT_EQ(list.methods[0].densities, std::vector{0.9});
  EXPECT_TRUE(list.methods[0].video_densities->empty());
  EXPECT_NEAR(std::get<SkipSoftmax>(list.methods[0].at(0.5).method).threshold.value(), std::sqrt(0.5e-6), 1e-6);
  EXPECT_EQ(list.methods[1].at(0.494).gate.min_seq_len, 49);
  EXPECT_FALSE(list.methods[2].knob.has_value());
  EXPECT_STREQ(list.methods[2].at(0.3).method_name(), "dense");
}

TEST_F(MethodLists, RefusesWhatIsWrong) {
  const auto refusal = [&](const std::string& text) { return message_of([&] { check_methods(read_method_list(write(text))); }); };
  EXPECT_THAT(message_of([&] { read_method_list("none.json"); }), HasSubstr("none.json"));
  EXPECT_THAT(refusal("{}"), HasSubstr("expected a list of methods"));
  EXPECT_THAT(refusal(R"({"methods":[],"density":1})"), HasSubstr("unknown key \"density\""));
  EXPECT_THAT(refusal(R"({"densities":[0],"methods":[]})"), HasSubstr("expected a list of densities in (0,1]"));
  EXPECT_THAT(refusal(R"({"methods":[{"label":"a"}]})"), HasSubstr("methods[0]: attention"));
  EXPECT_THAT(refusal(R"({"methods":[{"attention":{"method":"best"}}]})"), HasSubstr("best"));
  EXPECT_THAT(refusal(R"({"methods":[{"attention":{"method":"dense"},"knob":"cdf"}]})"), HasSubstr("range"));
  EXPECT_THAT(refusal(R"({"densities":[0.5],"methods":[{"attention":{"method":"dense"},"knob":"cdf","range":[0.0,1.0]}]})"),
              HasSubstr("unknown key"));
  EXPECT_THAT(refusal(R"({"densities":[0.5],"methods":[{"attention":{"method":"mean_pool"},"knob":"cdf","range":[0.0,1.0]}]})"),
              HasSubstr("cdf"));
  EXPECT_THAT(refusal(R"({"methods":[{"attention":{"method":"mean_pool"},"knob":"cdf","range":[0.1,1.0]}]})"), HasSubstr("densities"));
  EXPECT_THAT(refusal(R"({"methods":[{"attention":{"method":"mean_pool"},"knob":"cdf","range":[0.0,1.0],"log":true}]})"),
              HasSubstr("numbers above 0"));
  EXPECT_THAT(refusal(R"({"methods":[{"attention":{"method":"dense"}},{"attention":{"method":"dense"}}]})"), HasSubstr("the same label"));
  EXPECT_THAT(refusal(R"({"methods":[{"label":"floor","attention":{"method":"sol"}}]})"), HasSubstr("expected another name"));
  EXPECT_THAT(refusal(R"({"densities":[0.5,0.25,0.5],"methods":[{"attention":{"method":"sol"}}]})"),
              HasSubstr("densities: expected different ones, got 0.5 twice"));
  EXPECT_THAT(refusal(R"({"methods":[{"attention":{"method":"sol"},"video_densities":[0.5,0.5]}]})"),
              HasSubstr("sol: video_densities: expected different ones"));
  for (const char* label : {R"()", R"(  )", R"(a\nb)", R"(a\tb)"}) {
    EXPECT_THAT(refusal(R"({"methods":[{"label":")" + std::string(label) + R"(","attention":{"method":"sol"}}]})"),
                HasSubstr("methods: label: expected some text on one line, got \"" + std::string(label) + "\""));
  }
  EXPECT_THAT(refusal(R"({"methods":[{"label":"dense","attention":{"method":"sol"}}]})"), HasSubstr("expected another name"));
  EXPECT_THAT(refusal(R"({"methods":[{"attention":{"method":"dense"}},{"label":"again","attention":{"method":"dense"}}]})"),
              HasSubstr("dense and again have the same setting"));
}

TEST(KnobFit, FindsDensitiesWithFewMeasurements) {
  const MethodEntry entry = mean_pool_cdf();
  int measured = 0;
  const std::function<double(const AttentionConfig&)> curve = [&](const AttentionConfig& config) {
    ++measured;
    return std::pow(static_cast<double>(cdf_of(config)), 3.0);
  };
  KnobFit fit(entry, curve);
  for (const double target : {0.5, 0.25, 0.1}) EXPECT_NEAR(fit.fit(target).density, target, 0.016 * target);
  EXPECT_LE(measured, 22);
}

TEST(KnobFit, TakesTheClosestOfWholeSteps) {
  const MethodEntry entry = mean_pool_cdf();
  int measured = 0;
  const std::function<double(const AttentionConfig&)> steps = [&](const AttentionConfig& config) {
    ++measured;
    return std::ceil(8.0 * static_cast<double>(cdf_of(config))) / 8.0;
  };
  KnobFit fit(entry, steps);
  const Fitted found = fit.fit(0.4);
  EXPECT_EQ(found.density, 0.375);
  EXPECT_EQ(steps(found.attention), 0.375);
  EXPECT_LE(measured, 15);
}

TEST(KnobFit, OutOfReachIsTheNearestEnd) {
  const MethodEntry entry = mean_pool_cdf();
  const std::function<double(const AttentionConfig&)> flat = [](const AttentionConfig& config) {
    return 0.5 + 0.5 * static_cast<double>(cdf_of(config));
  };
  KnobFit fit(entry, flat);
  EXPECT_NEAR(fit.fit(0.25).density, 0.505, 1e-6);
}

// Dense takes 4 s, everything else 2 s; a sparse video is 0.1 brighter for an even seed and 0.2 for an odd one.
struct FakeEngine {
  std::vector<std::string> runs;
  int fail_after = 1000;

  GenerateResult operator()(const GenerateOptions& options) {
    if (static_cast<int>(runs.size()) >= fail_after) throw Cancelled("generate");
    const std::string name = options.attention.executor.empty() ? options.attention.method_name() : "floor";
    runs.push_back(options.prompt + ":" + std::to_string(options.seed) + ":" + name);
    const bool dense = name == "dense";
    GenerateResult result;
    result.report.seconds = dense ? 4.0 : 2.0;
    result.report.attention.attend_seconds = dense ? 2.0 : 0.5;
    result.report.attention.plan_seconds = dense ? 0.0 : 0.1;
    result.report.attention.pairs = 100.0;
    result.report.attention.computed_pairs = dense ? 100.0 : 25.0;
    result.frames = Tensor(DType::f32, {1, 16, 16, 3});
    const float brightness = dense ? 0.5F : options.seed % 2 == 0 ? 0.6F : 0.7F;
    std::fill_n(result.frames.as<float>(), result.frames.numel(), brightness);
    return result;
  }
};

Study two_settings() {
  Study study;
  study.settings.push_back({"dense", {}, {}, true, true});
  AttentionConfig other;
  other.executor = "scalar_f32";
  study.settings.push_back({"floor", other, {}, true, true});
  AttentionConfig pool;
  pool.method = MeanPool{.cdf = 0.5F};
  study.settings.push_back({"pool", pool, 0.25, false, true});
  AttentionConfig oracle;
  oracle.method = Oracle{.density = 0.25F};
  study.settings.push_back({"oracle", oracle, 0.25, false, false});
  return study;
}

VideoOptions two_prompts() {
  VideoOptions options;
  options.prompts = {"a", "b"};
  options.first_seed = 4;
  return options;
}

TEST(Videos, RunsDenseBesideEverySettingAndTheFloorOnce) {
  Study study = two_settings();
  FakeEngine fake;
  int saved = 0;
  VideoOptions options = two_prompts();
  options.prompt_done = [&] { ++saved; };
  std::vector<int> done;
  measure_videos(study, std::ref(fake), options, [&](const StudyEvent& event) {
    EXPECT_EQ(event.total, 5);
    done.push_back(event.done);
    return true;
  });
  EXPECT_THAT(fake.runs, ElementsAre("a:4:dense", "a:4:floor", "a:4:mean_pool", "b:5:dense", "b:5:mean_pool"));
  EXPECT_THAT(done, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(saved, 2);
  const std::vector<VideoSummary> summaries = summarise_videos(study);
  ASSERT_EQ(summaries.size(), 2U);
  const VideoSummary& pool = summaries[1];
  EXPECT_EQ(pool.prompts, 2);
  EXPECT_EQ(pool.speedup, 2.0);
  EXPECT_NEAR(pool.attention_speedup, 2.0 / 0.6, 1e-12);
  EXPECT_NEAR(pool.plan_share, 0.05, 1e-12);
  EXPECT_EQ(pool.density, 0.25);
  EXPECT_NEAR(pool.psnr_db.value_or(0.0), 0.5 * (20.0 + 20.0 * std::log10(5.0)), 1e-3);
  EXPECT_NEAR(pool.worst_psnr_db.value_or(0.0), 20.0 * std::log10(5.0), 1e-3);
  EXPECT_EQ(summarise_dense(study)->bound(), 2.0);
}

TEST(Videos, ResumesWhereItEnded) {
  Study study = two_settings();
  FakeEngine fake;
  fake.fail_after = 4;
  std::string saved;
  const StudyInfo info = {.model = "m", .program = "1"};
  VideoOptions options = two_prompts();
  options.prompt_done = [&] { saved = to_json(study, info); };
  EXPECT_THROW(measure_videos(study, std::ref(fake), options, {}), Cancelled);

  Study next = two_settings();
  EXPECT_EQ(take_over_videos(next, {.model = "m", .program = "2"}, saved, "r"), 0);  // another build
  EXPECT_EQ(take_over_videos(next, {.model = "n", .program = "1"}, saved, "r"), 0);
  EXPECT_EQ(take_over_videos(next, info, saved, "r"), 2);
  FakeEngine rest;
  measure_videos(next, std::ref(rest), options, {});
  EXPECT_THAT(rest.runs, ElementsAre("b:5:dense", "b:5:mean_pool"));
  EXPECT_EQ(next.videos.size(), 3U);
  EXPECT_THAT(message_of([&] { take_over_videos(next, info, "{}", "r"); }), HasSubstr("r: expected a report of winnow compare"));
  EXPECT_THAT(message_of([&] { take_over_videos(next, info, "{", "r"); }), HasSubstr("r"));
}

using NoiseFiles = Files;

TEST_F(NoiseFiles, AreKnownByTheirContents) {
  Study study = two_settings();
  FakeEngine fake;
  measure_videos(study, std::ref(fake), two_prompts(), {});
  StudyInfo info = {.model = "m", .program = "1"};
  info.generate.latents = write("some noise");
  const std::string saved = to_json(study, info);
  const auto taken = [&] {
    Study next = two_settings();
    return take_over_videos(next, info, saved, "r");
  };
  EXPECT_EQ(taken(), 3);
  write("other noise");
  EXPECT_EQ(taken(), 0);
  info.generate.latents.clear();
  EXPECT_EQ(taken(), 0);
}

TEST(Videos, CancelEndsThem) {
  Study study = two_settings();
  FakeEngine fake;
  EXPECT_THROW(measure_videos(study, std::ref(fake), two_prompts(), [](const StudyEvent& event) { return event.done < 1; }), Cancelled);
  EXPECT_EQ(fake.runs.size(), 1U);
}

CaptureRow capture_row(std::size_t setting, double density, double rel_l2, std::optional<double> mass) {
  CaptureRow row = {"layer1", setting, {}};
  row.call.density = density;
  row.call.errors.rel_l2 = rel_l2;
  row.call.mass_recall = mass;
  row.call.repeat = 3;
  row.call.plan_seconds = 0.1;
  row.call.kernel_seconds = 0.3;
  row.call.dense_seconds = 1.0;
  return row;
}

Study filled() {
  Study study = two_settings();
  study.captures = {capture_row(0, 1.0, 1e-3, 1.0), capture_row(2, 0.25, 0.02, 0.6), capture_row(2, 0.27, 0.04, 0.7),
                    capture_row(3, 0.25, 0.01, 0.9)};
  study.unreached = {{"skip", 0.25, 0.7}};
  FakeEngine fake;
  measure_videos(study, std::ref(fake), two_prompts(), {});
  return study;
}

bool has_null(const nlohmann::json& json) {
  if (json.is_null()) return true;
  if (!json.is_structured()) return false;
  return std::any_of(json.begin(), json.end(), has_null);
}

TEST(StudyReport, HasTheDocumentedKeysAndNoNulls) {
  Study study = filled();
  study.captures[1].call.errors.rel_l1 = std::nan("");
  const auto json = nlohmann::json::parse(to_json(study, {.model = "m"}));
  EXPECT_FALSE(has_null(json));
  const auto& capture = json.at("captures").at(1);
  for (const char* key : {"capture", "method", "setting", "density", "rel_l2", "mass_recall", "plan_share", "speedup"})
    EXPECT_TRUE(capture.contains(key)) << key;
  EXPECT_EQ(capture.at("plan_share"), 0.1);
  EXPECT_EQ(capture.at("speedup"), 2.5);
  EXPECT_FALSE(capture.contains("rel_l1"));
  EXPECT_EQ(json.at("captures").at(0).at("floor"), true);
  const auto& video = json.at("videos").at(1);
  for (const char* key : {"method", "setting", "speedup", "density", "psnr_db", "ssim"}) EXPECT_TRUE(video.contains(key)) << key;
  EXPECT_EQ(json.at("video_runs").size(), 3U);
  EXPECT_EQ(json.at("unreached").at(0).at("label"), "skip");
  EXPECT_TRUE(nlohmann::json::accept(video.at("setting").get<std::string>()));
}

TEST(StudyReport, SummarisesCaptures) {
  const std::vector<CaptureSummary> summaries = summarise_captures(filled());
  ASSERT_EQ(summaries.size(), 3U);
  EXPECT_EQ(summaries[1].captures, 2);
  EXPECT_NEAR(summaries[1].density, 0.26, 1e-12);
  EXPECT_NEAR(summaries[1].errors.rel_l2, 0.03, 1e-12);
  EXPECT_NEAR(summaries[1].mass_recall.value_or(0.0), 0.65, 1e-12);
  EXPECT_FALSE(summaries[1].set_recall.has_value());
}

TEST(StudyReport, TablesOrderAndFastest) {
  const std::string text = to_markdown(filled());
  for (const char* name : {"summary", "captures", "videos", "order", "fast"}) {
    EXPECT_THAT(text, HasSubstr("<!-- compare:" + std::string(name) + " -->\n| "));
    EXPECT_THAT(text, HasSubstr("<!-- /compare:" + std::string(name) + " -->\n"));
  }
  EXPECT_THAT(text, HasSubstr("oracle 0.900 > pool 0.650"));
  EXPECT_THAT(text, HasSubstr("Out of reach: skip at 0.25 (closest 0.700)."));
  EXPECT_THAT(text, HasSubstr("free self-attention would give 2.00x"));
  EXPECT_THAT(text, HasSubstr("3.33"));
}

// What a label may hold must neither add a column nor end the table.
TEST(StudyReport, TablesHoldAnyLabel) {
  Study study = filled();
  for (StudySetting& setting : study.settings) setting.label += " a|b";
  const std::string text = to_markdown(study);
  EXPECT_THAT(text, HasSubstr(R"(| pool a\|b)"));
  const auto columns = [](std::string line) {
    for (std::size_t at = 0; (at = line.find("\\|", at)) != std::string::npos;) line.erase(at, 2);
    return std::count(line.begin(), line.end(), '|');
  };
  std::istringstream lines(text);
  std::ptrdiff_t expected = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with('|')) {
      expected = 0;
      continue;
    }
    if (expected == 0) expected = columns(line);
    EXPECT_EQ(columns(line), expected) << line;
  }
}

TEST(StudyReport, WithoutTargetsThereIsNothingToSummariseOrOrder) {
  Study study = filled();
  for (StudySetting& setting : study.settings) setting.target.reset();
  const std::string text = to_markdown(study);
  EXPECT_THAT(text, StartsWith("<!-- compare:captures -->"));
  EXPECT_THAT(text, Not(HasSubstr("compare:order")));
}

TEST(StudyReport, CsvHasOneLineARecordAndQuotes) {
  const std::string text = to_csv(filled());
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1 + 4 + 2);
  EXPECT_THAT(text, HasSubstr(R"(capture,layer1,pool,mean_pool,"{""method"":""mean_pool"",)"));
}

TEST(StudyReport, PanelsHaveFloorsAndSeries) {
  const std::vector<media::PlotPanel> panels = plot_panels(filled());
  ASSERT_EQ(panels.size(), 2U);
  EXPECT_EQ(panels[0].floor, 1e-3);
  ASSERT_EQ(panels[0].series.size(), 2U);
  EXPECT_EQ(panels[0].series[0].name, "pool");
  EXPECT_NEAR(panels[0].series[0].points[0][0], 0.26, 1e-12);
  EXPECT_NEAR(panels[1].floor.value_or(0.0), 20.0, 1e-3);
  EXPECT_TRUE(plot_panels({}).empty());
}

// Real inputs, tiny: the oracle's knob is the density itself.
TEST(Captured, FitsAndMeasuresRealCalls) {
  std::vector<Capture> captures(1);
  captures[0].name = "c";
  for (Tensor* t : {&captures[0].q, &captures[0].k, &captures[0].v}) {
    *t = Tensor(DType::f32, {1, 640, 1, 8});
    for (std::int64_t i = 0; i < t->numel(); ++i)
      t->as<float>()[i] = std::sin(static_cast<float>(i * (t == &captures[0].q ? 7 : t == &captures[0].k ? 5 : 3)));
  }
  MethodList list;
  list.densities = {0.5, 0.3};
  list.video_densities = {0.5};
  list.methods = {
      {.label = "best", .attention = R"({"method":"oracle"})", .knob = Knob{.key = "density", .sparse = 0.01, .dense = 1.0}},
      {.label = "skip", .attention = R"({"method":"skip_softmax"})", .knob = Knob{.key = "threshold", .sparse = 0.9, .dense = 0.0}},
      {.label = "1/l", .attention = R"({"method":"oracle","density":0.5,"budget":{"mean_keep":0.1}})"}};
  Study study = make_study(list, captures, DType::f32, {});
  std::erase_if(study.settings, [](const StudySetting& s) { return s.label == "floor"; });
  ASSERT_EQ(study.settings.size(), 4U);
  EXPECT_TRUE(study.settings[1].makes_videos);
  EXPECT_FALSE(study.settings[2].makes_videos);
  EXPECT_EQ(study.unreached.size(), 2U);
  CallOptions options;
  options.repeat = 1;
  measure_captures(study, captures, options, {});
  const std::vector<CaptureSummary> summaries = summarise_captures(study);
  ASSERT_EQ(summaries.size(), 3U);  // dense runs on the executor that is exact
  EXPECT_NEAR(summaries[0].density, 0.5, 1e-9);
  EXPECT_NEAR(summaries[1].density, 0.3, 1e-9);
  EXPECT_EQ(summaries[2].density, summaries[0].density);  // without the budget, which has no earlier call to follow
  EXPECT_EQ(summaries[0].set_recall, 1.0);
  EXPECT_GT(summaries[1].errors.rel_l2, summaries[0].errors.rel_l2);
  EXPECT_THAT(message_of([&] { make_study(list, {}, DType::f32, {}); }), HasSubstr("captures: expected some"));
  EXPECT_THROW(make_study(list, captures, DType::f32, [](const StudyEvent&) { return false; }), Cancelled);
}

}  // namespace
}  // namespace winnow::report
