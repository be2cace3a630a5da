// How well does 1/l tell how sparse a head may be? Measured on a model's own attention calls, and the calibration that follows.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "calib/budget.h"
#include "media/plot.h"
#include "report/budget_trial.h"
#include "report/capture.h"
#include "report/comparison.h"
#include "report/unfinished.h"
#include "winnow/engine.h"

namespace winnow::report {

// One head of one call. Sparsities are of 128 x 64 tiles that are dropped, with the tiles chosen by their true mass.
struct HeadPoint {
  std::uint64_t seed = 0;  // of its run
  int expert = 0, step = 0, layer = 0, head = 0;
  double timestep = 0.0;    // normalised
  double mean_log_l = 0.0;  // the signal: -ln of the largest weight, mean over rows
  double entropy = 0.0;     // mean over rows, nats
  double mass95 = 0.0;      // sparsity that keeps 95 % of the mass in every row
  double achievable = 0.0;  // largest sparsity, by one share of the mass for all rows, with rel-L1 at most the given error
};

struct MeasuredHeads {
  std::vector<HeadPoint> points;
  std::string executor;  // that ran
};
// `executor` by name, or empty. Throws Error.
MeasuredHeads measure_heads(const AttentionInputs& call, double error, const std::string& executor, Workspace& ws);

struct BudgetOptions {
  GenerateOptions generate;  // prompt and attention are replaced; attention.executor gives the signal
  std::vector<std::string> prompts;
  std::string model;       // directory, for the fingerprint
  double error = 0.09;     // rel-L1, the source's
  int step_stride = 1;     // every n-th step of the run
  double overshoot = 0.1;  // share of the points that may be promised more than they have
  bool line = false;       // instead of isotonic
};
struct BudgetStudy {
  std::vector<HeadPoint> points;
  std::vector<BudgetTrial> trials;  // of every measured call
  std::int64_t tokens = 0;
  std::string executor;
};
// Dense runs, conditional branch. With `unfinished`, what an interrupted study has measured is taken over, and what this one has
// is kept after every step. Throws Error, Cancelled.
BudgetStudy measure_budgets(const Generate& generate, const BudgetOptions& options, const Unfinished* unfinished = nullptr);
// What the file of an unfinished study holds.
nlohmann::json measured_json(const BudgetStudy& study);
BudgetStudy measured_study(const Unfinished& unfinished);
// The same on captured calls; options.step_stride and what belongs to runs are ignored.
BudgetStudy measure_budgets(const std::vector<Capture>& captures, const BudgetOptions& options);
// Fits every expert that has points. Throws Error.
BudgetCalibration calibrate_budgets(const BudgetStudy& study, const BudgetOptions& options);

// Rank correlation of each signal with the achievable sparsity. Unset if a side is constant.
struct BudgetScore {
  std::string group;  // "all", "high", "low"
  int points = 0;
  std::optional<double> max_weight, timestep, entropy, mass95;
};
std::vector<BudgetScore> score_budgets(const BudgetStudy& study);
// Mean |promised - achievable| and the share of points that are promised more than 0.05 too much, of maps.
struct MapScore {
  std::string map;  // "constant", "free", "line", "isotonic"; fitted ones on even points, tested on odd ones
  double mean_error = 0.0;
  double overshoot = 0.0;
};
std::vector<MapScore> score_maps(const BudgetStudy& study);

std::string to_json(const BudgetStudy& study, const BudgetOptions& options);
std::string to_markdown(const BudgetStudy& study);  // tables budget_rank, budget_maps, budget_trials
// How much the signal changes from a step to the next one: mean |difference of mean ln l| over runs, layers and heads. Consecutive
// steps that were measured only; ascending.
struct SignalChange {
  int step = 0;  // the later one
  double change = 0.0;
};
std::vector<SignalChange> signal_changes(const BudgetStudy& study);

// Signal and achievable sparsity over the steps, one line per layer, and the signal's changes: the switch of experts is the peak.
std::vector<media::PlotPanel> plot_panels(const BudgetStudy& study);

}  // namespace winnow::report
