// Budgets from 1/l against the same share for every head, at equal density, on single attention calls.
#pragma once

#include <string>
#include <vector>

#include "winnow/engine.h"
#include "winnow/workspace.h"

namespace winnow::report {

struct BudgetTrial {
  std::string method;   // "subblock"
  double target = 0.0;  // share of tiles to keep
  bool signal = false;  // heads' shares by 1/l of this very call (free map), moved so that their mean is the target
  double density = 0.0;
  double rel_l1 = 0.0, rel_l2 = 0.0;  // against dense, all heads
  double mass_recall = 0.0;
};

// mean_pool and subblock at shares of 0.5 and 0.25, with one share and with 1/l. q has one batch entry, and as many heads as k.
std::vector<BudgetTrial> try_budgets(const AttentionInputs& call, const std::string& executor, Workspace& ws);

// Means over calls, in the order of the first call's trials. Empty if there are none.
std::vector<BudgetTrial> mean_trials(const std::vector<BudgetTrial>& trials);

}  // namespace winnow::report
