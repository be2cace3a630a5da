// Calibration of skip-softmax: which factor skips which share of the tiles.
//   threshold = min(factor / sequence length, 1)      factor = a exp(b target_sparsity)      a, b per model and expert
// docs/calibration.md describes the file.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace winnow {

// The line ln factor = ln a + b S through the points of one expert, and where it holds.
struct SkipFit {
  double a = 0.0;
  double b = 0.0;
  double r2 = 0.0;
  double lowest = 0.0, highest = 0.0;  // fitted range of S
};

struct SkipCalibration {
  struct Expert {
    double a = 0.0;
    double b = 0.0;
    std::optional<double> r2;
    std::optional<double> lowest, highest;  // fitted range of the sparsity; unset: not stated
    // Stated by ModelOpt: layers and first steps that its deployment keeps dense.
    std::vector<int> dense_layers = {};  // ascending
    int dense_steps = 0;
  };
  std::vector<std::optional<Expert>> experts;  // 0 high noise (or the only one), 1 low noise
  std::string executor;                        // that it was made on; empty: not stated
  int rows = 0, keys = 0;                      // its skip granule; 0: not stated
  std::string model;                           // model_fingerprint(); empty: not stated
  std::int64_t tokens = 0;                     // sequence length it was made at; 0: not stated

  // A Winnow calibration, a config.json with ModelOpt's sparse_attention_config (expert 0 only), {"transformer": such a config,
  // "transformer_2": ...}, or a model directory: its calibration/skip-softmax.json, else its components' config.json files.
  // Throws Error naming file and field.
  static SkipCalibration load(const std::string& path);
  void save(const std::string& path) const;  // the Winnow form

  const Expert& expert(int index) const;  // throws Error if there is none
  // Throws Error for a target outside the fitted range.
  double factor(int expert, double target_sparsity) const;
};

// Where load() would find the calibration of a model directory: a path, or empty.
std::string find_skip_calibration(const std::string& model_directory);

// 16 hex digits that change with the model's transformer weights: names, sizes, and samples of every file (first and last MiB,
// 64 pages between), so that 28 GB take no time.
std::string model_fingerprint(const std::string& model_directory);

// Skip gaps (AttendOptions::skip_gaps_log2) of one expert's calls, as counts per factor: constant memory.
class SkipGaps {
 public:
  SkipGaps();
  void add(std::span<const float> gaps_log2, std::int64_t keys);
  std::int64_t count() const { return total_; }
  // Granules by the factor from which on they are skipped: what a file of unfinished work holds.
  const std::vector<std::int64_t>& bins() const { return below_; }
  // Adds what other gaps counted. Throws Error if there are not as many bins, or more counts in them than granules.
  void add_bins(const std::vector<std::int64_t>& bins, std::int64_t count);
  // Share of the granules that threshold = min(factor / keys, 1) skips.
  double sparsity(double factor) const;
  // Sweeps `points` log-spaced factors over those with .05 < S < .9 and fits ln factor on S by least squares, leaving out the
  // largest factors until R2 >= .98 or 10 are left. Throws Error if fewer than 10 factors can be used.
  SkipFit fit(int points = 40) const;

 private:
  std::vector<std::int64_t> below_;  // [bins] granules by log2(factor) from which on they are skipped
  std::int64_t total_ = 0;
};

}  // namespace winnow
