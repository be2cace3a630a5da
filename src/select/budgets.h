// Shares of tiles to keep per head, read from a file: how a calibration reaches a selector.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace winnow {

struct HeadBudgets {
  std::string name;                        // of the file, for errors
  std::vector<std::vector<float>> layers;  // [L][H], L >= 1; L = 1 stands for every layer

  // Throws Error if there is no such layer, or it has not H heads.
  const std::vector<float>& of_layer(std::int64_t layer, std::int64_t H) const;
};

// {"keep": [0.5, 0.25]} per head, or {"keep": [[0.5, 0.25], [0.1, 1]]} per layer and head; numbers in (0,1]. Throws Error.
HeadBudgets load_head_budgets(const std::string& path);

}  // namespace winnow
