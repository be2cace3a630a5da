// One attention call: gate -> select -> attend -> statistics. Knows no model.
#include "winnow/session.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "exec/registry.h"
#include "run/break_even.h"
#include "run/layouts.h"
#include "run/methods.h"
#include "run/signal_keep.h"
#include "run/skip_target.h"
#include "run/static_plan.h"
#include "select/budgets.h"
#include "steps/gate.h"
#include "winnow/error.h"
#include "winnow/workspace.h"

namespace winnow {

namespace {

using Clock = std::chrono::steady_clock;
double seconds_between(Clock::time_point from, Clock::time_point to) { return std::chrono::duration<double>(to - from).count(); }

// Throws Error unless `name` is an executor of this machine that can do what the method needs.
void check_executor(const AttentionConfig& config) {
  if (config.executor.empty()) return;
  std::string names;
  for (const ExecutorInfo& info : executors()) {
    names += (names.empty() ? "" : ", ") + info.name;
    if (info.name != config.executor) continue;
    if (info.device != Device::cpu) throw Error("session", "executor: expected one that works on memory of the cpu, got " + info.name);
    if (!info.available) throw Error("session", "executor: expected one that runs here, got " + info.name + ", which " + info.why_not);
    if (std::holds_alternative<SkipSoftmax>(config.method) && info.skip_rows == 0) {
      throw Error("session", "executor: expected one with skip-softmax, got " + info.name);
    }
    return;
  }
  throw Error("session", "executor: expected one of " + names + ", got " + config.executor);
}

bool asks_for_dense(const Method& method) {
  const auto* skip = std::get_if<SkipSoftmax>(&method);
  return std::holds_alternative<Dense>(method) || (skip != nullptr && skip->threshold == 0.0F);
}

std::int64_t longest(std::span<const std::int64_t> documents) {
  std::int64_t most = 0;
  for (std::size_t d = 1; d < documents.size(); ++d) most = std::max(most, documents[d] - documents[d - 1]);
  return most;
}

// The rule of the gate that makes the whole call dense. Of packed documents the longest one decides.
DenseReason dense_reason(const AttentionConfig& config, const StepContext& context, const CallSequences& call) {
  if (asks_for_dense(config.method)) return DenseReason::requested;
  if (!call.self || context.documents.empty()) return gate(config.gate, context, call.queries.num_tokens, call.keys.num_tokens);
  const std::int64_t tokens = longest(context.documents);
  return gate(config.gate, context, tokens, tokens);
}

LayoutOptions sparse_layout(const AttentionConfig& config, const StepContext& context) {
  return {config.tokens.token_order, config.tokens.cube, context.documents.empty() ? 0 : min_seq_len(config.gate, context)};
}

}  // namespace

PlanSpec plan_spec(const AttentionConfig& config, const StepContext& context, const TensorView& q, const TensorView& k) {
  validate(context);
  PlanSpec spec;
  spec.grid = context.grid;
  const PlanGeometry geometry = plan_geometry(q, k, spec);
  const CallSequences call = call_sequences(context, geometry.Sq, geometry.Sk);
  spec.query_layout = make_layout(call.queries, sparse_layout(config, context), spec.tile_q);
  spec.key_layout = make_layout(call.keys, sparse_layout(config, context), spec.tile_k);
  return spec;
}

struct AttentionSession::Impl {
  AttentionConfig config;
  Diagnostics diagnostics;
  SessionTotals totals;
  std::optional<StaticPlan> fixed;  // of FixedPlan
  std::optional<HeadBudgets> budgets;
  std::optional<SkipTarget> skip;  // of SkipSoftmax
  std::optional<BreakEven> break_even;
  std::optional<SignalKeep> signal;
  LayoutCache layouts;
  bool told_missing_timestep = false;
  bool told_unknown_positions = false;

  // Once per run and reason.
  void tell(DenseReason reason) {
    if (reason == DenseReason::missing_timestep) {
      warn(told_missing_timestep, "gate.missing_timestep",
           "disabled_until_timestep is set, but the host gives no timestep: attention runs dense");
    }
    if (reason == DenseReason::unknown_positions) {
      warn(told_unknown_positions, "tokens.unknown_positions",
           "the host's grid and spans do not say where every video token is: attention runs dense");
    }
  }
  void warn(bool& told, const char* code, const char* message) const {
    if (!std::exchange(told, true) && diagnostics) diagnostics({Severity::warning, code, message});
  }

  // Sparse calls have to know where tokens are.
  DenseReason check_positions(const TokenSequence& sequence) const {
    // A window is one of the whole sequence's grid.
    const bool needs_grid = std::holds_alternative<Window>(config.method);
    const bool one_video = sequence.spans.empty() && sequence.documents.empty() && sequence.grid.known();
    if ((!needs_grid || one_video) && positions_known(sequence, config.tokens.token_order)) return DenseReason::none;
    if (config.tokens.unknown_positions == UnknownPositions::dense) return DenseReason::unknown_positions;
    throw Error("session", "grid: expected one of " + std::to_string(sequence.num_tokens) +
                               " tokens, or spans whose videos have grids, got " + std::to_string(sequence.grid.frames) + "x" +
                               std::to_string(sequence.grid.height) + "x" + std::to_string(sequence.grid.width));
  }

  void set_layouts(PlanSpec& spec, const StepContext& context, const CallSequences& call, DenseReason reason) {
    const bool sparse = reason == DenseReason::none;
    if (!sparse && !leaves_tokens_out(call.queries) && !leaves_tokens_out(call.keys)) return;
    const LayoutOptions options = sparse ? sparse_layout(config, context) : LayoutOptions{.order = TokenOrder::raster};
    const Layouts& made = layouts.get(call, options, spec.tile_q, spec.tile_k);
    spec.query_layout = made.queries;
    spec.key_layout = made.keys;
  }

  // Whether 1/l of an earlier call gave the heads their shares.
  bool set_signal_budget(PlanSpec& spec, const StepContext& context, const PlanGeometry& sizes) {
    const std::span<const float> keep = signal->keep(context, sizes.Sk, sizes.H, diagnostics);
    if (!keep.empty()) spec.keep = keep;
    return !keep.empty();
  }

  // Of a call whose layouts and budgets are set.
  DenseReason check_break_even(int step, const PlanSpec& spec, const TensorView& q, const TensorView& k, std::string_view executor) const {
    if (!break_even) return DenseReason::none;
    const std::string_view name = executor.empty() ? std::string_view(config.executor) : executor;
    const double keep =
        spec.keep.empty() ? 0.0 : std::accumulate(spec.keep.begin(), spec.keep.end(), 0.0) / static_cast<double>(spec.keep.size());
    const bool pays =
        break_even->pays(step, plan_geometry(q, k, spec), q.size(3), k.size(2), executor_for(name, q.dtype, q.size(3)).name, keep);
    return pays ? DenseReason::none : DenseReason::break_even;
  }

  void count(const CallReport& report) {
    ++totals.calls;
    ++totals.by_reason[static_cast<std::size_t>(report.reason)];
    totals.pairs += report.pairs;
    totals.computed_pairs += report.pairs * report.density;
    totals.plan_seconds += report.plan_seconds;
    totals.attend_seconds += report.attend_seconds;
    totals.executor = report.executor;
  }
};

AttentionSession::AttentionSession(AttentionConfig config, Diagnostics diagnostics) : impl_(std::make_unique<Impl>()) {
  config.validate();
  check_executor(config);
  if (const auto* plan = std::get_if<FixedPlan>(&config.method)) impl_->fixed.emplace(*plan);
  if (const auto* skip = std::get_if<SkipSoftmax>(&config.method)) impl_->skip.emplace(*skip, diagnostics);
  impl_->budgets = load_budgets(config.method);
  impl_->break_even = BreakEven::load(config, diagnostics);
  if (config.budget) impl_->signal.emplace(*config.budget);
  impl_->config = std::move(config);
  impl_->diagnostics = std::move(diagnostics);
}
AttentionSession::~AttentionSession() = default;
AttentionSession::AttentionSession(AttentionSession&&) noexcept = default;

const AttentionConfig& AttentionSession::config() const { return impl_->config; }
const SessionTotals& AttentionSession::totals() const { return impl_->totals; }
void AttentionSession::reset() {
  impl_->totals = {};
  impl_->told_missing_timestep = false;
  impl_->told_unknown_positions = false;
  if (impl_->skip) impl_->skip->reset();
  if (impl_->break_even) impl_->break_even->reset();
  if (impl_->signal) impl_->signal->reset();
}

CallReport AttentionSession::attend(const StepContext& context, const TensorView& q, const TensorView& k, const TensorView& v,
                                    const TensorView& out, Workspace& ws, const AttendOptions& options) {
  validate(context);
  const Workspace::Scope scope(ws);
  PlanSpec spec;
  spec.scale = options.scale;
  spec.grid = context.grid;

  const auto start = Clock::now();
  CallReport report;
  spec.report = &report.selected;
  const PlanGeometry sizes = plan_geometry(q, k, spec);
  if (impl_->budgets) spec.keep = impl_->budgets->of_layer(context.layer, sizes.H);
  const CallSequences sequences = call_sequences(context, sizes.Sq, sizes.Sk);
  report.reason = dense_reason(impl_->config, context, sequences);
  if (report.reason == DenseReason::none && impl_->skip) report.reason = impl_->skip->dense_reason(context);
  if (report.reason == DenseReason::none) report.reason = impl_->check_positions(sequences.queries);
  impl_->tell(report.reason);
  impl_->set_layouts(spec, context, sequences, report.reason);
  if (report.reason == DenseReason::none) {
    if (impl_->signal) report.signal_budget = impl_->set_signal_budget(spec, context, sizes);
    report.reason = impl_->check_break_even(context.step, spec, q, k, options.executor);
    if (report.reason == DenseReason::break_even) {
      report.signal_budget = false;
      spec.query_layout = spec.key_layout = nullptr;
      impl_->set_layouts(spec, context, sequences, report.reason);
    }
  }
  std::optional<TilePlan> made;
  const TilePlan* plan = nullptr;
  if (report.reason == DenseReason::none && impl_->fixed) {
    plan = &impl_->fixed->fit(q, k, spec);
    if (!context.spans.empty() || !context.documents.empty()) check_protects(*plan, spec);
  } else {
    made = report.reason == DenseReason::none ? make_plan(q, k, spec, impl_->config.method, ws)
                                              : TilePlan::dense(plan_geometry(q, k, spec), report.reason, &ws);
    plan = &*made;
  }
  const auto planned = Clock::now();

  AttendOptions call = options;
  if (call.executor.empty()) call.executor = impl_->config.executor;
  if (report.reason != DenseReason::none) {
    call.skip_threshold_log2 = -std::numeric_limits<float>::infinity();
  } else if (impl_->skip) {
    const Executor& executor = executor_for(call.executor, q.dtype, q.size(3));
    const std::int64_t keys = context.documents.empty() ? plan->geometry().keys(0) : longest(context.documents);
    call.skip_threshold_log2 = impl_->skip->threshold_log2(context, keys, executor, impl_->diagnostics);
    call.executor = executor.name;
  }
  // A call that drops keys says too little about their weight.
  const bool gives_signal = impl_->signal && sequences.self && (plan->is_identity() || plan->skipped() == Skipped::mean);
  if (gives_signal && call.stats.inv_l.data == nullptr) {
    call.stats.inv_l =
        TensorView(ws.allocate<float>(static_cast<std::size_t>(sizes.B * sizes.H * sizes.Sq)), DType::f32, {sizes.B, sizes.H, sizes.Sq});
  }
  const AttendResult result = winnow::attend(*plan, q, k, v, out, call, ws);
  if (gives_signal) impl_->signal->note(context, sizes.Sk, call.stats.inv_l);
  const auto attended = Clock::now();

  report.pairs = plan->geometry().pairs();
  report.density = plan->density() * skip_softmax_share(result.granules_tested, result.granules_skipped);
  report.plan_seconds = seconds_between(start, planned);
  report.attend_seconds = seconds_between(planned, attended);
  report.executor = result.executor;
  if (impl_->break_even && report.reason == DenseReason::none) impl_->break_even->saw(context.step, report.pairs, report.density);
  impl_->count(report);
  return report;
}

}  // namespace winnow
