// The cost model: its fit, its file, and where it is looked for.
#include "calib/cost_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "device/cpu/features.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/variable.h"
#include "winnow/error.h"
#include "winnow/version.h"

namespace winnow {
namespace {

using testing::HasSubstr;

std::vector<CostSample> samples_of(const CostLine& line, double noise = 0.0) {
  std::vector<CostSample> samples;
  double sign = 1.0;
  for (const double tokens : {128.0, 512.0, 2048.0, 8192.0}) {
    for (const double D : {64.0, 128.0}) {
      for (const double density : {0.25, 1.0}) {
        const CostWork work{6 * tokens * D, 2 * tokens * tokens * density, 2 * tokens * tokens * D * density};
        samples.push_back({work, line.seconds(work) * (1.0 + sign * noise)});
        sign = -sign;
      }
    }
  }
  return samples;
}

TEST(CostFit, FindsTheLineItsSamplesAreOn) {
  const CostLine line{2e-5, 1e-10, 3e-11, 7e-12};
  const CostLine found = fit_cost(samples_of(line));
  EXPECT_NEAR(found.per_call, line.per_call, 1e-6 * line.per_call);
  EXPECT_NEAR(found.per_value, line.per_value, 1e-6 * line.per_value);
  EXPECT_NEAR(found.per_pair, line.per_pair, 1e-6 * line.per_pair);
  EXPECT_NEAR(found.per_product, line.per_product, 1e-6 * line.per_product);
  EXPECT_LT(worst_error(found, samples_of(line)), 1e-9);
}

TEST(CostFit, NoisySamplesGiveNoNegativeCostsAndSmallErrors) {
  const CostLine line{1e-5, 0.0, 0.0, 7e-12};
  const std::vector<CostSample> samples = samples_of(line, 0.1);
  const CostLine found = fit_cost(samples);
  for (const double cost : {found.per_call, found.per_value, found.per_pair, found.per_product}) EXPECT_GE(cost, 0.0);
  EXPECT_LT(worst_error(found, samples), 0.25);
}

TEST(CostFit, OneSampleIsReproduced) {
  const std::vector<CostSample> one{{{100, 10, 1000}, 0.5}};
  EXPECT_LT(worst_error(fit_cost(one), one), 1e-12);
}

TEST(CostFit, RefusesWhatIsNoMeasurement) {
  EXPECT_THROW(fit_cost({}), Error);
  for (const double seconds : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const std::vector<CostSample> samples{{{1, 1, 1}, seconds}};
    EXPECT_THROW(fit_cost(samples), Error) << seconds;
  }
}

class CostProfiles : public tests::FolderTest {
 protected:
  CostProfile profile() const {
    CostProfile made{.version = version(), .cpu = cpu_name(), .threads = 3, .executors = {}};
    made.executors.push_back({"scalar_f32", {1e-5, 2e-10, 0, 3e-9}, {{"mean_pool", {1e-6, 1e-10, 0, 1e-9}}}});
    return made;
  }
  std::string error_of(const std::string& text) const {
    const std::string file = path("profile.json");
    std::ofstream(file) << text;
    try {
      CostProfile::load(file);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }
};

TEST_F(CostProfiles, RoundTrip) {
  const CostProfile before = profile();
  before.save(path("profile.json"));
  const CostProfile after = CostProfile::load(path("profile.json"));
  EXPECT_EQ(after.threads, 3);
  ASSERT_NE(after.find("scalar_f32"), nullptr);
  EXPECT_EQ(after.find("amx_bf16"), nullptr);
  EXPECT_EQ(after.find("scalar_f32")->attend.per_value, 2e-10);
  EXPECT_EQ(after.find("scalar_f32")->planning.at("mean_pool").per_product, 1e-9);
}

TEST_F(CostProfiles, RefusesFilesThatDoNotFit) {
  const std::string good = R"("format":"winnow.cost_profile","version":")" + std::string(version()) + R"(","cpu":")" + cpu_name() + R"(",)";
  EXPECT_EQ(error_of("{" + good + R"("threads":1,"executors":{}})"), "none");
  EXPECT_THAT(error_of("{}"), HasSubstr("expected the key \"format\""));
  EXPECT_THAT(error_of("[]"), HasSubstr("expected an object"));
  EXPECT_THAT(error_of(R"({"format":"other"})"), HasSubstr("format: expected winnow.cost_profile"));
  EXPECT_THAT(error_of(R"({"format":"winnow.cost_profile","version":"0.0.0"})"), HasSubstr("version: expected " + std::string(version())));
  EXPECT_THAT(error_of(R"({"format":"winnow.cost_profile","version":")" + std::string(version()) + R"(","cpu":"abacus"})"),
              HasSubstr("cpu: expected " + cpu_name()));
  EXPECT_THAT(error_of("{" + good + R"("threads":0,"executors":{}})"), HasSubstr("threads: expected an integer from 1"));
  EXPECT_THAT(error_of("{" + good + R"("threads":1,"executors":{},"x":1})"), HasSubstr("unknown key \"x\""));
  EXPECT_THAT(error_of("{" + good + R"("threads":1,"executors":{"a":{"attend":{"seconds_per_call":-1},"planning":{}}}})"),
              HasSubstr("seconds_per_call: expected a number from 0"));
  EXPECT_THAT(error_of("{" + good + R"("threads":1,"executors":{"a":{"attend":{"seconds_per_call":1},"planning":{}}}})"),
              HasSubstr("expected the key \"seconds_per_value\""));
  EXPECT_THROW(CostProfile::load(path("missing.json")), Error);
}

using tests::Variable;

TEST(CostProfilePlaces, KeyBeforeVariableBeforeCacheFolder) {
  const Variable home("HOME", "/home/somebody");
  const Variable cache("XDG_CACHE_HOME", nullptr);
  {
    const Variable unset("WINNOW_PROFILE", nullptr);
    EXPECT_EQ(find_profile("").path, "/home/somebody/.cache/winnow/profile.json");
    EXPECT_FALSE(find_profile("").named);
    const Variable other("XDG_CACHE_HOME", "/cache");
    EXPECT_EQ(find_profile("").path, "/cache/winnow/profile.json");
    EXPECT_EQ(find_profile("mine.json").path, "mine.json");
    EXPECT_TRUE(find_profile("mine.json").named);
    EXPECT_EQ(find_profile("none").path, "");
  }
  {
    const Variable set("WINNOW_PROFILE", "its.json");
    EXPECT_EQ(find_profile("").path, "its.json");
    EXPECT_TRUE(find_profile("").named);
    EXPECT_EQ(find_profile("mine.json").path, "mine.json");
  }
  const Variable none("WINNOW_PROFILE", "none");
  EXPECT_EQ(find_profile("").path, "");
}

}  // namespace
}  // namespace winnow
