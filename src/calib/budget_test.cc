// The calibration file of budgets: what it keeps, and that every refusal names its field.
#include "calib/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/support/temporary_folder.h"
#include "winnow/error.h"

namespace winnow {
namespace {

using testing::HasSubstr;
using tests::TemporaryFolder;

TEST(BudgetCalibrationFile, SavesAndLoads) {
  const TemporaryFolder folder;
  BudgetCalibration calibration;
  calibration.model = "0123456789abcdef";
  calibration.executor = "amx_bf16";
  calibration.tokens = 4752;
  calibration.error = 0.09;
  calibration.experts[1] = BudgetCalibration::Expert{.map = {{-6.0, -2.0}, {0.1, 0.7}}, .kind = "line", .points = 12, .spearman = 0.75};
  calibration.save(folder / "b.json");
  const BudgetCalibration loaded = BudgetCalibration::load(folder / "b.json");
  EXPECT_EQ(loaded.model, calibration.model);
  EXPECT_EQ(loaded.tokens, 4752);
  EXPECT_EQ(loaded.experts[1]->points, 12);
  EXPECT_DOUBLE_EQ(loaded.expert(1).keep(4.0), 0.6);
  EXPECT_THROW(loaded.expert(0), Error);
  EXPECT_THROW(loaded.expert(2), Error);
  EXPECT_THROW(loaded.expert(-1), Error);
}

TEST(BudgetCalibrationFile, RefusesWhatItDoesNotKnow) {
  const TemporaryFolder folder;
  const auto error_of = [&](const std::string& more, const std::string& x, const std::string& sparsity) {
    std::ofstream(folder / "b.json") << R"({"format":"winnow.budget_calibration","version":1,"model":"","tokens":100,"error":0.09,)"
                                     << R"("executor":{"name":"x","tile_q":128,"tile_k":64})" << more
                                     << R"(,"experts":{"high":{"kind":"isotonic","points":3,"spearman":0.5,"ln_max_weight":)" << x
                                     << R"(,"sparsity":)" << sparsity << "}}}";
    try {
      BudgetCalibration::load(folder / "b.json");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(error_of("", "[-4,-2]", "[0.1,0.5]"), "accepted");
  EXPECT_THAT(error_of(R"(,"extra":1)", "[-4,-2]", "[0.1,0.5]"), HasSubstr("\"extra\""));
  EXPECT_THAT(error_of("", "[-2,-4]", "[0.1,0.5]"), HasSubstr("ascending"));
  EXPECT_THAT(error_of("", "[-4,-2]", "[0.1]"), HasSubstr("sparsity"));
  EXPECT_THAT(error_of("", "[]", "[]"), HasSubstr("ln_max_weight"));
  EXPECT_THAT(error_of("", "[-4,\"x\"]", "[0.1,0.5]"), HasSubstr("ln_max_weight"));
  EXPECT_THAT(error_of("", "[-4,-2]", "[0.1,1.5]"), HasSubstr("sparsity: expected numbers from 0 to 1, got 1.5"));
}

}  // namespace
}  // namespace winnow
