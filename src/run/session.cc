// One attention call: gate -> select -> attend -> statistics. Knows no model.
#include "winnow/session.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "run/methods.h"
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

// Share of attention's work done on the tiles that were visited: QK always, softmax and PV unless skipped.
double skip_softmax_share(const AttendResult& result) {
  if (result.granules_tested == 0) return 1.0;
  return 1.0 - 0.5 * static_cast<double>(result.granules_skipped) / static_cast<double>(result.granules_tested);
}

// The file of budgets per head that the method names, if any. Throws Error if it cannot be read.
std::optional<HeadBudgets> load_budgets(const Method& method) {
  return std::visit(
      []<class Options>(const Options& options) -> std::optional<HeadBudgets> {
        if constexpr (requires { options.budgets; }) {
          if (!options.budgets.empty()) return load_head_budgets(options.budgets);
        }
        return std::nullopt;
      },
      method);
}

}  // namespace

struct AttentionSession::Impl {
  AttentionConfig config;
  Diagnostics diagnostics;
  SessionTotals totals;
  std::optional<TilePlan> fixed;  // of FixedPlan
  std::optional<HeadBudgets> budgets;
  bool told_missing_timestep = false;

  void tell(DenseReason reason) {
    if (reason != DenseReason::missing_timestep || told_missing_timestep) return;
    told_missing_timestep = true;
    if (!diagnostics) return;
    diagnostics({Severity::warning, "gate.missing_timestep",
                 "disabled_until_timestep is set, but the host gives no timestep: attention runs dense"});
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
  if (const auto* plan = std::get_if<FixedPlan>(&config.method)) impl_->fixed = TilePlan::load(plan->path);
  impl_->budgets = load_budgets(config.method);
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
  const PlanGeometry geometry = plan_geometry(q, k, spec);
  if (impl_->budgets) spec.keep = impl_->budgets->of_layer(context.layer, geometry.H);
  report.pairs = static_cast<double>(geometry.B) * static_cast<double>(geometry.H) * static_cast<double>(geometry.Sq) *
                 static_cast<double>(geometry.Sk);
  report.reason =
      asks_for_dense(impl_->config.method) ? DenseReason::requested : gate(impl_->config.gate, context, geometry.Sq, geometry.Sk);
  impl_->tell(report.reason);

  std::optional<TilePlan> made;
  const TilePlan* plan = nullptr;
  if (report.reason == DenseReason::none && impl_->fixed) {
    check_plan_fits(*impl_->fixed, q, k, spec);
    plan = &*impl_->fixed;
  } else {
    made = report.reason == DenseReason::none ? make_plan(q, k, spec, impl_->config.method, ws)
                                              : TilePlan::dense(geometry, report.reason, &ws);
    plan = &*made;
  }
  const auto planned = Clock::now();

  AttendOptions call = options;
  if (call.executor.empty()) call.executor = impl_->config.executor;
  if (report.reason != DenseReason::none) {
    call.skip_threshold_log2 = -std::numeric_limits<float>::infinity();
  } else if (const auto* skip = std::get_if<SkipSoftmax>(&impl_->config.method)) {
    call.skip_threshold_log2 = std::log2(skip->threshold);
  }
  const AttendResult result = winnow::attend(*plan, q, k, v, out, call, ws);
  const auto attended = Clock::now();

  report.density = plan->density() * skip_softmax_share(result);
  report.plan_seconds = seconds_between(start, planned);
  report.attend_seconds = seconds_between(planned, attended);
  report.executor = result.executor;
  impl_->count(report);
  return report;
}

}  // namespace winnow
