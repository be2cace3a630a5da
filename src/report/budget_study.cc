#include "report/budget_study.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "calib/skip_softmax.h"
#include "core/finite.h"
#include "core/label.h"
#include "core/numeric.h"
#include "select/tile_mass.h"
#include "steps/budget.h"
#include "winnow/attend.h"
#include "winnow/error.h"
#include "winnow/metrics.h"
#include "winnow/plan.h"
#include "winnow/select.h"
#include "winnow/workspace.h"

namespace winnow::report {

namespace {

constexpr int kBisections = 8;
constexpr double kLeastMass = 0.3;

// A head's tiles of every row, heaviest first.
struct RankedTiles {
  std::int64_t rows = 0, tiles = 0;
  std::vector<std::int32_t> order;  // [rows, tiles]
  std::vector<double> sum;          // [rows, tiles] of the mass up to there

  RankedTiles(const float* mass, std::int64_t Gq, std::int64_t Gk)
      : rows(Gq), tiles(Gk), order(static_cast<std::size_t>(Gq * Gk)), sum(order.size()) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const float* row = mass + i * tiles;
      const auto first = order.begin() + i * tiles;
      std::iota(first, first + tiles, 0);
      std::stable_sort(first, first + tiles, [&](std::int32_t a, std::int32_t b) { return row[a] > row[b]; });
      double so_far = 0.0;
      for (std::int64_t j = 0; j < tiles; ++j) sum[static_cast<std::size_t>(i * tiles + j)] = so_far += double{row[first[j]]};
    }
  }
  // Tiles of row i that hold `share` of its mass; at least one.
  std::int64_t count(std::int64_t i, double share) const {
    const auto first = sum.begin() + i * tiles;
    const double target = share * *(first + tiles - 1);
    return std::min(tiles, static_cast<std::int64_t>(std::lower_bound(first, first + tiles, target) - first) + 1);
  }
  double sparsity(double share) const {
    std::int64_t kept = 0;
    for (std::int64_t i = 0; i < rows; ++i) kept += count(i, share);
    return 1.0 - static_cast<double>(kept) / static_cast<double>(rows * tiles);
  }
};

// One call under plans made from true masses.
class HeadMeter {
 public:
  HeadMeter(const AttentionInputs& call, const std::string& executor, Workspace& ws)
      : call_(call), ws_(ws), geometry_(plan_geometry(call.q, call.k, {})) {
    options_.executor = executor;
    dense_ = output();
    trial_ = output();
    TileMass masses(call.q, call.k, geometry_, 1.0F / std::sqrt(static_cast<float>(call.q.size(3))), ws);
    for (std::int64_t h = 0; h < geometry_.H; ++h) heads_.emplace_back(masses.head(0, h), geometry_.Gq(), geometry_.Gk());
  }

  const std::string& executor() const { return executor_; }
  std::vector<HeadPoint> points(double error) {
    std::vector<HeadPoint> out(static_cast<std::size_t>(geometry_.H));
    signals(out);
    std::vector<double> low(out.size(), kLeastMass);
    std::vector<double> high(out.size(), 1.0);
    for (int i = 0; i < kBisections; ++i) {
      std::vector<double> share(out.size());
      for (std::size_t h = 0; h < out.size(); ++h) share[h] = 0.5 * (low[h] + high[h]);
      run(share);
      for (std::size_t h = 0; h < out.size(); ++h) {
        const auto head = static_cast<std::int64_t>(h);
        const double found = rel_l1(trial_.slice(2, head, head + 1), dense_.slice(2, head, head + 1));
        (found > error ? low[h] : high[h]) = share[h];
      }
    }
    for (std::size_t h = 0; h < out.size(); ++h) {
      out[h].mass95 = heads_[h].sparsity(0.95);
      out[h].achievable = heads_[h].sparsity(high[h]);
      out[h].head = static_cast<int>(h);
    }
    return out;
  }

 private:
  TensorView output() {
    return {ws_.allocate<float>(static_cast<std::size_t>(call_.q.numel())), DType::f32, {1, geometry_.Sq, geometry_.H, call_.q.size(3)}};
  }

  // mean ln l, and the entropy ln Z - sum p s: the mean logit is q . (attention with the keys as values), scaled.
  void signals(std::vector<HeadPoint>& out) {
    const std::int64_t rows = geometry_.Sq;
    const std::int64_t H = geometry_.H;
    const TensorView inv_l(ws_.allocate<float>(static_cast<std::size_t>(H * rows)), DType::f32, {1, H, rows});
    const TensorView lse(ws_.allocate<float>(static_cast<std::size_t>(H * rows)), DType::f32, {1, H, rows});
    const TilePlan plan = TilePlan::dense(geometry_, DenseReason::requested, &ws_);
    AttendOptions options = options_;
    options.stats = {lse, inv_l};
    attend(plan, call_.q, call_.k, call_.k, trial_, options_, ws_);
    executor_ = attend(plan, call_.q, call_.k, call_.v, dense_, options, ws_).executor;
    if (!all_finite(dense_)) {
      throw Error("budget", "q, k, v: expected finite attention, got NaN or infinite values");
    }
    std::vector<double> mean(out.size());
    mean_log_l(inv_l, mean);
    const std::int64_t D = call_.q.size(3);
    const double scale = 1.0 / std::sqrt(static_cast<double>(D));
    for (std::int64_t h = 0; h < H; ++h) {
      double entropy = 0.0;
      for (std::int64_t i = 0; i < rows; ++i) {
        double logit = 0.0;
        const float* key = trial_.as<float>() + i * trial_.stride(1) + h * trial_.stride(2);
        for (std::int64_t d = 0; d < D; ++d) logit += query(i, h, d) * double{key[d]};
        entropy += double{lse.as<float>()[h * rows + i]} - scale * logit;
      }
      out[static_cast<std::size_t>(h)].mean_log_l = mean[static_cast<std::size_t>(h)];
      out[static_cast<std::size_t>(h)].entropy = entropy / static_cast<double>(rows);
    }
  }

  double query(std::int64_t i, std::int64_t h, std::int64_t d) const {
    const TensorView& q = call_.q;
    const std::int64_t at = i * q.stride(1) + h * q.stride(2) + d;
    return double{q.dtype == DType::bf16 ? to_f32(q.as<bf16>()[at]) : q.dtype == DType::f16 ? to_f32(q.as<f16>()[at]) : q.as<float>()[at]};
  }

  void run(const std::vector<double>& share) {
    const Workspace::Scope scope(ws_);
    PlanBuilder builder(geometry_, Skipped::drop, &ws_);
    const auto each_row = [&](auto f) {
      for (std::int64_t h = 0; h < geometry_.H; ++h) {
        for (std::int64_t i = 0; i < geometry_.Gq(); ++i) f(h, i, geometry_.row(0, h, i));
      }
    };
    const auto counts = builder.counts(Tier::refine);
    each_row([&](std::int64_t h, std::int64_t i, std::int64_t row) {
      counts[static_cast<std::size_t>(row)] = heads_[static_cast<std::size_t>(h)].count(i, share[static_cast<std::size_t>(h)]);
    });
    builder.allocate();
    each_row([&](std::int64_t h, std::int64_t i, std::int64_t row) {
      const RankedTiles& ranked = heads_[static_cast<std::size_t>(h)];
      const auto tiles = builder.tiles(Tier::refine, row);
      std::copy_n(ranked.order.begin() + i * ranked.tiles, tiles.size(), tiles.begin());
    });
    attend(std::move(builder).finish(), call_.q, call_.k, call_.v, trial_, options_, ws_);
  }

  const AttentionInputs& call_;
  Workspace& ws_;
  PlanGeometry geometry_;
  AttendOptions options_;
  TensorView dense_, trial_;
  std::string executor_;
  std::vector<RankedTiles> heads_;
};

using CallKey = std::tuple<std::uint64_t, int, int>;  // seed, step, layer
using Points = std::vector<std::array<double, 2>>;

// (ln of the largest weight, achievable sparsity) of one expert's points, or of all (-1); every other one if `part` is 0 or 1.
Points fit_points(const BudgetStudy& study, int expert, int part = -1) {
  Points points;
  int index = 0;
  for (const HeadPoint& p : study.points) {
    if (expert >= 0 && p.expert != expert) continue;
    if (part < 0 || index++ % 2 == part) points.push_back({-p.mean_log_l, p.achievable});
  }
  return points;
}

std::optional<double> rank(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() < 2) return {};
  const double rho = spearman(a, b);
  return std::isfinite(rho) ? std::optional(rho) : std::nullopt;
}

BudgetScore score(const BudgetStudy& study, const char* group, int expert) {
  std::vector<double> achievable;
  std::vector<double> weight;
  std::vector<double> time;
  std::vector<double> entropy;
  std::vector<double> mass;
  for (const HeadPoint& p : study.points) {
    if (expert >= 0 && p.expert != expert) continue;
    achievable.push_back(p.achievable);
    weight.push_back(-p.mean_log_l);
    time.push_back(-p.timestep);  // later steps are sparser, says the proxy
    entropy.push_back(-p.entropy);
    mass.push_back(p.mass95);
  }
  return {group,
          static_cast<int>(achievable.size()),
          rank(weight, achievable),
          rank(time, achievable),
          rank(entropy, achievable),
          rank(mass, achievable)};
}

void add_call(BudgetStudy& study, const AttentionInputs& call, std::uint64_t seed, const BudgetOptions& options, Workspace& ws) {
  const std::string& executor = options.generate.attention.executor;
  MeasuredHeads measured = measure_heads(call, options.error, executor, ws);
  for (HeadPoint& p : measured.points) p.seed = seed;
  study.executor = std::move(measured.executor);
  study.tokens = call.k.size(1);
  study.points.insert(study.points.end(), measured.points.begin(), measured.points.end());
  const std::vector<BudgetTrial> trials = try_budgets(call, executor, ws);
  study.trials.insert(study.trials.end(), trials.begin(), trials.end());
}

}  // namespace

MeasuredHeads measure_heads(const AttentionInputs& call, double error, const std::string& executor, Workspace& ws) {
  if (call.q.size(0) != 1 || call.q.size(2) != call.k.size(2)) {
    throw Error("budget", "q, k: expected one batch entry with as many key heads, got " + call.q.describe() + " and " + call.k.describe());
  }
  const Workspace::Scope scope(ws);
  HeadMeter meter(call, executor, ws);
  MeasuredHeads measured = {meter.points(error), meter.executor()};
  for (HeadPoint& p : measured.points) {
    p.expert = call.context.expert;
    p.step = call.context.step;
    p.layer = call.context.layer;
    p.timestep = call.context.timestep.value_or(0.0);
  }
  return measured;
}

BudgetStudy measure_budgets(const Generate& generate, const BudgetOptions& options, const Unfinished* unfinished) {
  if (options.step_stride < 1) throw Error("budget", "step_stride: expected at least 1, got " + std::to_string(options.step_stride));
  BudgetStudy study = unfinished == nullptr ? BudgetStudy() : measured_study(*unfinished);
  std::set<CallKey> measured;
  for (const HeadPoint& p : study.points) measured.insert({p.seed, p.step, p.layer});
  std::size_t kept = study.points.size();
  const auto keep = [&] {
    if (unfinished == nullptr || study.points.size() == kept) return;
    unfinished->keep(measured_json(study));
    kept = study.points.size();
  };
  Workspace ws;
  GenerateOptions run = options.generate;
  run.attention = AttentionConfig();
  run.attention.executor = options.generate.attention.executor;
  run.cache = {};
  run.attention_observer = [&](const AttentionInputs& call) {
    const StepContext& context = call.context;
    if (context.branch != Branch::conditional || context.step % options.step_stride != 0) return;
    if (context.layer == 0) keep();
    if (measured.insert({run.seed, context.step, context.layer}).second) add_call(study, call, run.seed, options, ws);
  };
  const int last_step = (run.steps - 1) / options.step_stride * options.step_stride;
  const bool has_embeds = !options.generate.prompt_embeds.empty();
  for (std::size_t i = 0; i < (has_embeds ? 1 : options.prompts.size()); ++i, ++run.seed) {
    if (measured.contains({run.seed, last_step, 0})) continue;
    if (!has_embeds) run.prompt = options.prompts[i];
    generate(run);
    keep();
  }
  if (study.points.empty()) throw Error("budget", "prompts: expected at least one, got none");
  return study;
}

BudgetStudy measure_budgets(const std::vector<Capture>& captures, const BudgetOptions& options) {
  BudgetStudy study;
  Workspace ws;
  for (const Capture& capture : captures) {
    with_label("budget", capture.name, [&] { add_call(study, capture.inputs(), 0, options, ws); });
  }
  return study;
}

BudgetCalibration calibrate_budgets(const BudgetStudy& study, const BudgetOptions& options) {
  BudgetCalibration calibration;
  if (!options.model.empty()) calibration.model = model_fingerprint(options.model);
  calibration.executor = study.executor;
  calibration.tokens = study.tokens;
  calibration.error = options.error;
  for (int e = 0; e < 2; ++e) {
    const Points points = fit_points(study, e);
    if (points.empty()) continue;
    BudgetCalibration::Expert expert;
    expert.kind = options.line ? "line" : "isotonic";
    expert.map = options.line ? fit_line(points) : fit_isotonic(points);
    make_safe(expert.map, points, options.overshoot);
    expert.points = static_cast<std::int64_t>(points.size());
    expert.spearman = score(study, "", e).max_weight.value_or(0.0);
    calibration.experts[static_cast<std::size_t>(e)] = std::move(expert);
  }
  return calibration;
}

std::vector<BudgetScore> score_budgets(const BudgetStudy& study) {
  std::vector<BudgetScore> scores = {score(study, "all", -1), score(study, "high noise", 0), score(study, "low noise", 1)};
  std::erase_if(scores, [](const BudgetScore& s) { return s.points == 0; });
  return scores;
}

std::vector<SignalChange> signal_changes(const BudgetStudy& study) {
  std::map<std::tuple<std::uint64_t, int, int>, std::map<int, double>> signals;  // of (seed, layer, head), by step
  for (const HeadPoint& p : study.points) signals[{p.seed, p.layer, p.head}][p.step] = p.mean_log_l;
  std::map<int, std::pair<double, int>> sums;  // of each later step
  for (const auto& [head, by_step] : signals) {
    for (auto before = by_step.begin(), after = std::next(before); after != by_step.end(); ++before, ++after) {
      if (!std::isfinite(after->second - before->second)) continue;
      auto& [sum, count] = sums[after->first];
      sum += std::abs(after->second - before->second);
      ++count;
    }
  }
  std::vector<SignalChange> changes;
  for (const auto& [step, sum] : sums) changes.push_back({step, sum.first / sum.second});
  return changes;
}

std::vector<MapScore> score_maps(const BudgetStudy& study) {
  const Points fitted = fit_points(study, -1, 0);
  const Points tested = fit_points(study, -1, 1);
  if (fitted.size() < 2 || tested.empty()) return {};
  double constant = 0.0;
  for (const auto& p : fitted) constant += p[1] / static_cast<double>(fitted.size());
  const BudgetMap line = fit_line(fitted);
  const BudgetMap isotonic = fit_isotonic(fitted);
  std::vector<MapScore> scores;
  const auto add = [&](const char* name, auto promised) {
    MapScore s{name};
    for (const auto& [x, achievable] : tested) {
      const double more = promised(x) - achievable;
      s.mean_error += std::abs(more) / static_cast<double>(tested.size());
      s.overshoot += more > 0.05 ? 1.0 / static_cast<double>(tested.size()) : 0.0;
    }
    scores.push_back(s);
  };
  add("constant", [&](double) { return constant; });
  add("free", [&](double x) { return 1.0 - free_keep(-x, study.tokens, 0.95, 0.6); });
  add("line", [&](double x) { return 1.0 - line.keep(-x); });
  add("isotonic", [&](double x) { return 1.0 - isotonic.keep(-x); });
  return scores;
}

}  // namespace winnow::report
