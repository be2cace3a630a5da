// The calibration file of MagCache: what is written reads back, and what is refused.
#include "calib/magnitudes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"
#include "winnow/error.h"

namespace winnow {
namespace {

using testing::HasSubstr;

MagnitudeCalibration made() {
  MagnitudeCalibration calibration;
  calibration.model = "0123456789abcdef";
  calibration.executor = "amx_bf16";
  calibration.tokens = 4752;
  calibration.ratios.high = {{1.0, 0.98, 1.01}, {1.0, 0.97, 1.02}};
  return calibration;
}

TEST(MagnitudeCalibration, ReadsBackWhatItWrites) {
  const tests::TemporaryFolder folder;
  made().save(folder / "m.json");
  const MagnitudeCalibration read = MagnitudeCalibration::load(folder / "m.json");
  EXPECT_EQ(read.model, made().model);
  EXPECT_EQ(read.executor, "amx_bf16");
  EXPECT_EQ(read.tokens, 4752);
  EXPECT_EQ(read.ratios, made().ratios);
}

TEST(MagnitudeCalibration, RefusalsNameTheirField) {
  const tests::TemporaryFolder folder;
  const std::string head = R"({"format":"winnow.magnitude_calibration","version":1,"model":"x","tokens":10,"executor":{"name":"y"},)";
  const auto message = [&](const std::string& text) {
    std::ofstream(folder / "m.json") << text;
    return tests::message_of([&] { MagnitudeCalibration::load(folder / "m.json"); });
  };
  EXPECT_THAT(message("{}"), HasSubstr("expected the key \"format\""));
  EXPECT_THAT(message(R"({"format":"other"})"), HasSubstr("format: expected winnow.magnitude_calibration"));
  EXPECT_THAT(message(head + R"("experts":{"high":{"conditional":[1,0],"unconditional":[]}}})"),
              HasSubstr("high: conditional: expected numbers from 1e-06 to 1e+06, got 0"));
  EXPECT_THAT(message(head + R"("experts":{"high":{"conditional":[],"unconditional":[]}}})"), HasSubstr("at least one number"));
  EXPECT_THAT(message(head + R"("experts":{"high":{"conditional":[1]}}})"), HasSubstr("expected the key \"unconditional\""));
  EXPECT_THAT(message(head + R"("experts":{"middle":{}}})"), HasSubstr("unknown key \"middle\""));
  EXPECT_THAT(message(head + R"("experts":{},"more":1})"), HasSubstr("unknown key \"more\""));
  EXPECT_THAT(tests::message_of([&] { MagnitudeCalibration::load(folder / "none.json"); }), HasSubstr("none.json"));
}

}  // namespace
}  // namespace winnow
