// The calibration of budgets from 1/l: what `winnow calibrate budget` fits and a session reads. docs/calibration.md has the format.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "steps/budget.h"

namespace winnow {

struct BudgetCalibration {
  struct Expert {
    BudgetMap map;
    std::string kind = "isotonic";  // or "line"
    std::int64_t points = 0;        // (layer, head, step) that it was fitted to
    double spearman = 0.0;          // of the signal with the sparsity that is achievable
  };
  std::string model = {};     // fingerprint of the weights
  std::string executor = {};  // that gave the signal
  std::int64_t tokens = 0;
  int tile_q = 128, tile_k = 64;
  double error = 0.0;                                 // rel-L1 that the sparsities keep to
  std::array<std::optional<Expert>, 2> experts = {};  // high (also the only one), low

  // Throws Error if there is none for it.
  const BudgetMap& expert(int index) const;
  // Throw Error.
  void save(const std::string& path) const;
  static BudgetCalibration load(const std::string& path);
};

}  // namespace winnow
