#include "report/attention_call.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "report/call_runner.h"
#include "run/methods.h"
#include "winnow/attend.h"
#include "winnow/error.h"
#include "winnow/workspace.h"

namespace winnow::report {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Rows 0, step, 2 step, ... of [B,S,H,D], without copying.
TensorView every_nth_row(const TensorView& x, std::int64_t step, std::int64_t count) {
  TensorView sampled = x;
  sampled.shape[1] = count;
  sampled.strides[1] = x.stride(1) * step;
  return sampled;
}

CallErrors errors_of(const TensorView& value, const TensorView& reference) {
  return {.rel_l1 = rel_l1(value, reference), .rel_l2 = rel_l2(value, reference), .cosine = cosine(value, reference)};
}

void check_ranks(const AttentionInputs& call) {
  if (call.q.rank == 4 && call.k.rank == 4 && call.v.rank == 4) return;
  throw Error("attend", "expected q, k and v as [B,S,H,D], got " + call.q.describe() + ", " + call.k.describe() + ", " + call.v.describe());
}

ExactRows dense_rows(const AttentionInputs& call, std::int64_t step, std::int64_t count, const std::string& executor) {
  check_ranks(call);
  Workspace ws;
  ExactRows exact;
  exact.step = step;
  exact.executor = executor;
  const TensorView q = every_nth_row(call.q, step, count);
  exact.out = Tensor(DType::f32, q.shape.data(), 4);
  const TilePlan plan = TilePlan::dense(plan_geometry(q, call.k, {}), DenseReason::requested, &ws);
  attend(plan, q, call.k, call.v, exact.out, {.executor = executor}, ws);
  return exact;
}

// The setting without what would run the call dense: a measurement of the method is meant.
AttentionConfig always_sparse(AttentionConfig config) {
  config.gate = {};
  config.profile = "none";
  config.tokens.unknown_positions = UnknownPositions::error;
  return config;
}

void check_call(const AttentionInputs& call, const AttentionConfig& config) {
  check_ranks(call);
  check_single_call(config);
  // A session runs cross-attention dense, whatever the method.
  if (call.q.size(1) == call.k.size(1) || std::holds_alternative<Dense>(config.method)) return;
  throw Error("attend", std::string("expected as many queries as keys for ") + config.method_name() +
                            ", because other calls run dense (cross_attention), got q " + call.q.describe() + " and k " +
                            call.k.describe());
}

class Measurement {
 public:
  Measurement(const AttentionInputs& call, const ExactRows& exact, const AttentionConfig& config, const CallOptions& options)
      : call_(call), exact_(exact), config_(always_sparse(config)), options_(options) {
    check_call(call, config);
    if (options.repeat < 0) throw Error("attend", "repeat: expected at least 0, got " + std::to_string(options.repeat));
    AttentionConfig dense;
    dense.executor = config.executor;
    if (options.gpu) {
      const std::shared_ptr<GpuCall> there = on_gpu(call, *options.gpu);
      setting_ = gpu_runner(there, config_, ws_);
      dense_ = gpu_runner(there, dense, ws_);
    } else {
      setting_ = cpu_runner(call, config_, ws_);
      dense_ = cpu_runner(call, dense, ws_);
    }
  }

  CallMeasurement run() {
    CallMeasurement result;
    const CallRun first = setting_->run();  // also checks everything, before anything slow
    dense_->run();
    result.executor = first.executor;
    result.density = first.density;
    result.selected = first.selected;
    result.rows = exact_.out.view().size(1);
    result.errors = errors_of(every_nth_row(setting_->out(), exact_.step, result.rows), exact_.out);
    result.dense_errors = errors_of(every_nth_row(dense_->out(), exact_.step, result.rows), exact_.out);
    if (options_.recall) measure_recall(result);
    if (options_.repeat > 0) time(result);
    return result;
  }

 private:
  void tell(std::string_view stage, int step) const {
    ProgressEvent event;
    event.stage = stage;
    event.step = step;
    event.num_steps = options_.repeat;
    if (options_.progress && !options_.progress(event)) throw Cancelled("attend");
  }

  void measure_recall(CallMeasurement& result) {
    tell("recall", 0);
    const Workspace::Scope scope(ws_);
    if (const std::optional<TilePlan> plan = plan_of(call_, config_, ws_)) {
      const Recall recall = plan_recall(*plan, call_.q, call_.k, PlanSpec{}.scale, ws_);
      result.mass_recall = recall.mass;
      result.set_recall = recall.set;
    } else if (!std::holds_alternative<Dense>(config_.method)) {
      result.mass_recall = mass_by_row_sums();
    }
  }

  // exp(LSE of what was computed - LSE of everything) is the softmax mass of what was computed.
  double mass_by_row_sums() {
    const TensorView lse = setting_->lse();
    const TensorView dense_lse = dense_->lse();
    double sum = 0.0;
    std::int64_t rows = 0;
    for (std::int64_t i = 0; i < lse.numel(); ++i) {
      const double mass = std::exp(static_cast<double>(lse.as<float>()[i]) - static_cast<double>(dense_lse.as<float>()[i]));
      if (!std::isfinite(mass)) continue;  // a row without keys, or not finite
      sum += std::min(mass, 1.0);          // rounding may pass 1
      ++rows;
    }
    return rows > 0 ? sum / static_cast<double>(rows) : 0.0;
  }

  void time(CallMeasurement& result) {
    std::vector<double> plan_seconds, kernel_seconds, dense_seconds;
    const auto start = Clock::now();
    for (int r = 0; r < options_.repeat && (r < 3 || seconds_since(start) < options_.max_seconds); ++r) {
      tell("timing", r);
      const CallRun sparse = setting_->run();
      const CallRun dense = dense_->run();
      plan_seconds.push_back(sparse.plan_seconds);
      kernel_seconds.push_back(sparse.attend_seconds);
      dense_seconds.push_back(dense.plan_seconds + dense.attend_seconds);
    }
    result.repeat = static_cast<int>(plan_seconds.size());
    result.plan_seconds = median(plan_seconds);
    result.kernel_seconds = median(kernel_seconds);
    result.dense_seconds = median(dense_seconds);
  }

  const AttentionInputs& call_;
  const ExactRows& exact_;
  const AttentionConfig config_;
  const CallOptions& options_;
  Workspace ws_;
  std::unique_ptr<CallRunner> setting_, dense_;
};

}  // namespace

ExactRows exact_rows(const AttentionInputs& call, int count) {
  check_ranks(call);
  if (count < 1) throw Error("attend", "rows: expected at least 1, got " + std::to_string(count));
  const std::int64_t n = std::min<std::int64_t>(count, call.q.size(1));
  return dense_rows(call, std::max<std::int64_t>(1, call.q.size(1) / count), n, "reference");
}

ExactRows f32_rows(const AttentionInputs& call) {
  check_ranks(call);
  for (const ExecutorInfo& info : executors()) {
    const bool takes = std::find(info.dtypes.begin(), info.dtypes.end(), call.q.dtype) != info.dtypes.end();
    if (info.available && takes && info.computes_in.starts_with("f32")) return dense_rows(call, 1, call.q.size(1), info.name);
  }
  return exact_rows(call, static_cast<int>(std::max<std::int64_t>(1, call.q.size(1))));
}

void check_single_call(const AttentionConfig& config) {
  if (config.budget) throw Error("attend", "budget: expected none, because 1/l of earlier calls is not known for a single one");
}

CallMeasurement measure_call(const AttentionInputs& call, const ExactRows& exact, const AttentionConfig& config,
                             const CallOptions& options) {
  return Measurement(call, exact, config, options).run();
}

double density_of(const AttentionInputs& call, const AttentionConfig& config, Workspace& ws) {
  check_call(call, config);
  const Workspace::Scope scope(ws);
  if (const std::optional<TilePlan> plan = plan_of(call, config, ws)) return plan->density();
  const TensorView out(ws.allocate_bytes(static_cast<std::size_t>(call.q.numel()) * sizeof(float)), DType::f32, call.q.shape.data(), 4);
  StepContext context;
  context.grid = call.context.grid;
  return AttentionSession(always_sparse(config)).attend(context, call.q, call.k, call.v, out, ws).density;
}

bool makes_plan(const AttentionConfig& config) { return selects_tiles(config.method); }

std::optional<TilePlan> plan_of(const AttentionInputs& call, const AttentionConfig& config, Workspace& ws, SelectReport* report) {
  if (!makes_plan(config)) return {};
  StepContext context;  // gates are ignored
  context.grid = call.context.grid;
  PlanSpec spec = plan_spec(config, context, call.q, call.k);
  spec.report = report;
  const std::optional<HeadBudgets> budgets = load_budgets(config.method);
  if (budgets) spec.keep = budgets->of_layer(context.layer, call.q.size(2));
  return make_plan(call.q, call.k, spec, config.method, ws);
}

}  // namespace winnow::report
