#include "select/rows.h"

#include <cmath>
#include <limits>

#include "prep/block_kernels.h"
#include "select/budgets.h"
#include "winnow/error.h"
#include "winnow/threads.h"

namespace winnow {

std::int64_t tiles_of_share(double share, std::int64_t n) {
  const auto tiles = static_cast<double>(n);
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(share * tiles - tiles * 0x1p-24)), std::min<std::int64_t>(n, 1), n);
}

RowChooser::RowChooser(const PlanGeometry& geometry, const PlanSpec& spec, const RowPolicy& policy, KeptTiles& kept, Workspace& ws)
    : geometry_(geometry), spec_(spec), policy_(policy), kept_(kept), keep_(spec.keep), workers_(num_threads()) {
  if (keep_.empty() && !policy.budgets.empty()) {
    loaded_ = load_head_budgets(policy.budgets).of_layer(0, geometry.H);
    keep_ = loaded_;
  }
  const auto n = static_cast<std::size_t>(padded(geometry.Gk()));
  scratch_ = ws.allocate<Scratch>(static_cast<std::size_t>(workers_));
  for (int w = 0; w < workers_; ++w) scratch_[w] = {ws.allocate<float>(n), ws.allocate<std::uint64_t>(n)};
}

void RowChooser::choose(std::int64_t b, std::int64_t h, std::int64_t query_tile, std::span<const float> scores, int worker) {
  Scratch& scratch = scratch_[worker];
  const RowRules rules = row_rules(geometry_, b, query_tile, policy_.neighbors);
  const std::span<std::uint64_t> order(scratch.order, scores.size());
  const std::int64_t row = geometry_.row(b, h, query_tile);
  const std::int64_t n = rules.candidates.size();
  const std::optional<float> of = share(row, h);
  const std::int64_t forced = of ? rank_keys(scores, rules, order) : rank_tiles(scores, rules, order);
  const std::int64_t asked = of ? std::max(forced, tiles_of_share(static_cast<double>(*of), n)) : count(scores, rules, forced, scratch);
  const std::int64_t given = snap(asked, spec_.granularity, n);
  if (of) first_tiles(rules, given, order);
  kept_.keep(row, {scratch.order, static_cast<std::size_t>(given)});
  scratch.candidates += n;
  scratch.asked += asked;
  scratch.kept += given;
}

std::optional<float> RowChooser::share(std::int64_t row, std::int64_t h) const {
  if (!keep_.empty()) {
    const bool per_row = static_cast<std::int64_t>(keep_.size()) == geometry_.rows();
    return keep_[static_cast<std::size_t>(per_row ? row : h)];
  }
  if (policy_.budget.kind == Budget::Kind::share) return policy_.budget.value;
  return std::nullopt;
}

std::int64_t RowChooser::count(std::span<const float> scores, const RowRules& rules, std::int64_t forced, const Scratch& scratch) const {
  const std::int64_t n = rules.candidates.size();
  const std::span<const std::uint64_t> order(scratch.order, scores.size());
  switch (policy_.budget.kind) {
    case Budget::Kind::share: break;  // needs no order
    case Budget::Kind::mass: return count_for_mass(scores, rules.candidates, order, forced, policy_.budget.value);
    case Budget::Kind::log_mass: return count_for_log_mass(scores, rules, forced, scratch);
    case Budget::Kind::threshold: {
      std::int64_t taken = std::max(forced, std::min<std::int64_t>(n, 1));
      while (taken < n && scores[order[static_cast<std::size_t>(taken)]] >= policy_.budget.value) ++taken;
      return taken;
    }
  }
  return n;
}

std::int64_t RowChooser::count_for_log_mass(std::span<const float> scores, const RowRules& rules, std::int64_t forced,
                                            const Scratch& scratch) const {
  const auto begin = static_cast<std::size_t>(rules.candidates.begin);
  const std::span<const float> candidates = scores.subspan(begin, static_cast<std::size_t>(rules.candidates.size()));
  float largest = -std::numeric_limits<float>::infinity();
  for (const float score : candidates) {
    if (std::isfinite(score)) largest = std::max(largest, score);
  }
  const std::int64_t ld = padded(static_cast<std::int64_t>(scores.size()));
  std::fill_n(scratch.mass, ld, largest);  // exp_sum takes no more than the shift
  std::ranges::copy(candidates, scratch.mass + begin);
  block_kernels().exp_sum(scratch.mass, ld, largest);
  return count_for_mass({scratch.mass, scores.size()}, rules.candidates, {scratch.order, scores.size()}, forced, policy_.budget.value);
}

void RowChooser::write_report() const {
  if (spec_.report == nullptr) return;
  SelectReport& report = *spec_.report;
  for (int w = 0; w < workers_; ++w) {
    report.candidates += scratch_[w].candidates;
    report.asked += scratch_[w].asked;
    report.kept += scratch_[w].kept;
  }
}

}  // namespace winnow
