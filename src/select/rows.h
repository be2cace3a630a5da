// The loop over plan rows that every selector shares: scores of a few query tiles, then order, budget and granularity of each row.
// A selector is its scores.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/threads.h"
#include "prep/block_kernels.h"
#include "select/ranking.h"
#include "winnow/plan.h"
#include "winnow/select.h"
#include "winnow/threads.h"
#include "winnow/workspace.h"

namespace winnow {

// How many tiles a row takes, in the order of rank_tiles(): at least the forced ones and at least one.
struct Budget {
  enum class Kind : std::uint8_t {
    share,      // ceil(value * candidates)
    mass,       // the smallest set with `value` of the total; scores are masses
    log_mass,   // the same; scores are logs of masses
    threshold,  // those with a score >= value
  };
  Kind kind = Kind::share;
  float value = 1.0F;
};

// ceil(share * n), at least 1, with room for the f32 rounding of `share`: ceil((1 - 0.9f) * 10) is 1. 0 if n is.
std::int64_t tiles_of_share(double share, std::int64_t n);

// What a selector's options say about every row.
struct RowPolicy {
  Budget budget;
  bool neighbors = false;
  bool means = false;
  std::string budgets = {};  // a file of shares per head (load_head_budgets), used where PlanSpec::keep is empty
};

// Turns scores into kept tiles, one row at a time.
class RowChooser {
 public:
  // The references have to outlive the object, whose memory comes from `ws`.
  RowChooser(const PlanGeometry& geometry, const PlanSpec& spec, const RowPolicy& policy, KeptTiles& kept, Workspace& ws);
  // scores[j]: of key tile j < geometry.key_tiles(b). One call per row; workers may call at the same time.
  void choose(std::int64_t b, std::int64_t h, std::int64_t query_tile, std::span<const float> scores, int worker);
  // Adds up what was asked and given, if PlanSpec::report wants it.
  void write_report() const;

 private:
  // One worker's memory.
  struct Scratch {
    float* mass = nullptr;           // [padded(Gk)]
    std::uint64_t* order = nullptr;  // [Gk]
    std::int64_t candidates = 0;     // totals over its rows
    std::int64_t asked = 0;
    std::int64_t kept = 0;
  };
  std::optional<float> share(std::int64_t row, std::int64_t h) const;  // if the row's budget is one
  std::int64_t count(std::span<const float> scores, const RowRules& rules, std::int64_t forced, const Scratch& scratch) const;
  std::int64_t count_for_log_mass(std::span<const float> scores, const RowRules& rules, std::int64_t forced, const Scratch& scratch) const;

  const PlanGeometry& geometry_;
  const PlanSpec& spec_;
  const RowPolicy& policy_;
  KeptTiles& kept_;
  std::vector<float> loaded_;    // from policy.budgets
  std::span<const float> keep_;  // [H] or [rows], or empty
  Scratch* scratch_ = nullptr;
  int workers_ = 1;
};

// The plan of a selector whose scores come a few query tiles at a time. make_scores() is called once and may take memory from `ws`
// for as long as the scores are needed; its result is called as
//   scores(b, h, begin, end, worker, out)    out[i - begin][j] of query tiles i in [begin, end), rows of padded(Gk) floats
constexpr std::int64_t kRowsPerTask = 4;  // what BlockKernels::scores computes side by side
template <class MakeScores>
TilePlan select_rows(const PlanGeometry& geometry, const PlanSpec& spec, const RowPolicy& policy, Workspace& ws, MakeScores make_scores) {
  KeptTiles kept(geometry, ws);
  {
    const Workspace::Scope scratch(ws);
    const auto scores = make_scores();
    RowChooser rows(geometry, spec, policy, kept, ws);
    const std::int64_t ld = padded(geometry.Gk());
    float* const buffers = ws.allocate<float>(static_cast<std::size_t>(num_threads() * kRowsPerTask * ld));
    const std::int64_t chunks = (geometry.Gq() + kRowsPerTask - 1) / kRowsPerTask;
    parallel_for(geometry.B * geometry.H * chunks, [&](std::int64_t task, int worker) {
      const std::int64_t b = task / chunks / geometry.H;
      const std::int64_t h = task / chunks % geometry.H;
      const std::int64_t begin = task % chunks * kRowsPerTask;
      const std::int64_t end = std::min(begin + kRowsPerTask, geometry.Gq());
      const auto n = static_cast<std::size_t>(geometry.key_tiles(b));
      if (n == 0) return;
      float* const out = buffers + worker * kRowsPerTask * ld;
      scores(b, h, begin, end, worker, out);
      for (std::int64_t i = begin; i < end; ++i) rows.choose(b, h, i, {out + (i - begin) * ld, n}, worker);
    });
    rows.write_report();
  }
  return kept.plan(geometry, policy.means ? Skipped::mean : Skipped::drop, ws);
}

}  // namespace winnow
