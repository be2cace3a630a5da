#include <utility>

#include "report/call_runner.h"
#include "winnow/attend.h"

namespace winnow::report {

namespace {

class CpuRunner : public CallRunner {
 public:
  CpuRunner(const AttentionInputs& call, const AttentionConfig& config, Workspace& ws)
      : call_(call), session_(config), ws_(ws), out_(DType::f32, call.q.shape.data(), 4) {
    context_.grid = call.context.grid;
  }

  CallRun run() override { return attend({}); }
  TensorView out() override { return out_; }
  TensorView lse() override {
    if (lse_.empty()) lse_ = Tensor(DType::f32, {call_.q.size(0), call_.q.size(2), call_.q.size(1)});
    attend({.stats = {.lse = lse_}});
    return lse_;
  }

 private:
  CallRun attend(const AttendOptions& options) {
    const CallReport report = session_.attend(context_, call_.q, call_.k, call_.v, out_, ws_, options);
    return {report.executor, report.density, report.selected, report.plan_seconds, report.attend_seconds};
  }

  const AttentionInputs& call_;
  AttentionSession session_;
  Workspace& ws_;
  StepContext context_;
  Tensor out_, lse_;
};

}  // namespace

std::unique_ptr<CallRunner> cpu_runner(const AttentionInputs& call, const AttentionConfig& config, Workspace& ws) {
  return std::make_unique<CpuRunner>(call, config, ws);
}

}  // namespace winnow::report
