#include "report/attention_call.h"

#include <algorithm>
#include <chrono>
#include <vector>

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

// Every step-th row of [B,S,H,D], without copying.
TensorView every_nth_row(const TensorView& x, std::int64_t rows) {
  const std::int64_t step = std::max<std::int64_t>(1, x.size(1) / rows);
  TensorView sampled = x;
  sampled.shape[1] = std::min(rows, x.size(1));
  sampled.strides[1] = x.stride(1) * step;
  return sampled;
}

CallErrors errors_of(const TensorView& value, const TensorView& reference) {
  return {.rel_l1 = rel_l1(value, reference), .rel_l2 = rel_l2(value, reference), .cosine = cosine(value, reference)};
}

class Measurement {
 public:
  Measurement(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionConfig& config, const CallOptions& options)
      : q_(q), k_(k), v_(v), options_(options), session_(without_gates(config)), dense_session_(dense_like(config)) {
    if (q.rank != 4 || k.rank != 4 || v.rank != 4) {
      throw Error("attend", "expected q, k and v as [B,S,H,D], got " + q.describe() + ", " + k.describe() + ", " + v.describe());
    }
    if (options.rows < 1) throw Error("attend", "rows: expected at least 1, got " + std::to_string(options.rows));
    if (options.repeat < 1) throw Error("attend", "repeat: expected at least 1, got " + std::to_string(options.repeat));
    out_ = Tensor(DType::f32, q.shape.data(), 4);
    dense_out_ = Tensor(DType::f32, q.shape.data(), 4);
  }

  CallMeasurement run() {
    CallMeasurement result;
    tell("timing", 0);
    const CallReport first = call(session_, out_);  // also checks everything, before anything slow
    call(dense_session_, dense_out_);
    result.executor = first.executor;
    result.density = first.density;
    tell("reference", 0);
    compare_with_reference(result);
    if (options_.recall) {
      tell("recall", 0);
      measure_recall(result);
    }
    time(result);
    return result;
  }

 private:
  static AttentionConfig without_gates(AttentionConfig config) {
    config.gate = {};
    return config;
  }
  static AttentionConfig dense_like(const AttentionConfig& config) {
    AttentionConfig dense;
    dense.executor = config.executor;
    return dense;
  }

  CallReport call(AttentionSession& session, const TensorView& out) { return session.attend({}, q_, k_, v_, out, ws_); }

  void tell(std::string_view stage, int step) const {
    ProgressEvent event;
    event.stage = stage;
    event.step = step;
    event.num_steps = options_.repeat;
    if (options_.progress && !options_.progress(event)) throw Cancelled("attend");
  }

  void compare_with_reference(CallMeasurement& result) {
    const Workspace::Scope scope(ws_);
    const TensorView rows = every_nth_row(q_, options_.rows);
    const Tensor exact(DType::f32, rows.shape.data(), 4);
    const TilePlan plan = TilePlan::dense(plan_geometry(rows, k_, {}), DenseReason::requested, &ws_);
    attend(plan, rows, k_, v_, exact, {.executor = "reference"}, ws_);
    result.rows = rows.size(1);
    result.errors = errors_of(every_nth_row(out_, options_.rows), exact);
    result.dense_errors = errors_of(every_nth_row(dense_out_, options_.rows), exact);
  }

  void measure_recall(CallMeasurement& result) {
    const Workspace::Scope scope(ws_);
    const std::optional<TilePlan> plan = plan_of(q_, k_, session_.config(), ws_);
    if (plan) result.recall = plan_recall(*plan, q_, k_, PlanSpec{}.scale, ws_);
  }

  void time(CallMeasurement& result) {
    std::vector<double> plan_seconds, kernel_seconds, dense_seconds;
    const auto start = Clock::now();
    for (int r = 0; r < options_.repeat && (r < 3 || seconds_since(start) < options_.max_seconds); ++r) {
      tell("timing", r);
      const CallReport sparse = call(session_, out_);
      const CallReport dense = call(dense_session_, dense_out_);
      plan_seconds.push_back(sparse.plan_seconds);
      kernel_seconds.push_back(sparse.attend_seconds);
      dense_seconds.push_back(dense.plan_seconds + dense.attend_seconds);
    }
    result.repeat = static_cast<int>(plan_seconds.size());
    result.plan_seconds = median(plan_seconds);
    result.kernel_seconds = median(kernel_seconds);
    result.dense_seconds = median(dense_seconds);
  }

  TensorView q_, k_, v_;
  const CallOptions& options_;
  AttentionSession session_, dense_session_;
  Tensor out_, dense_out_;
  Workspace ws_;
};

}  // namespace

CallMeasurement measure_call(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionConfig& config,
                             const CallOptions& options) {
  return Measurement(q, k, v, config, options).run();
}

std::optional<TilePlan> plan_of(const TensorView& q, const TensorView& k, const AttentionConfig& config, Workspace& ws) {
  if (!selects_tiles(config.method)) return {};
  return make_plan(q, k, {}, config.method, ws);
}

}  // namespace winnow::report
