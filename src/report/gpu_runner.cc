#include <array>
#include <chrono>
#include <optional>
#include <utility>

#include "exec/cuda/measure.h"
#include "exec/registry.h"
#include "report/attention_call.h"
#include "report/call_runner.h"
#include "run/methods.h"
#include "run/skip_target.h"
#include "winnow/attend.h"
#include "winnow/cuda.h"
#include "winnow/error.h"

namespace winnow::report {

// A workspace's memory lives as long as it does.
class GpuCall {
 public:
  GpuCall(const AttentionInputs& call, int gpu)
      : host(call), ws(gpu), q(copied("q", call.q)), k(copied("k", call.k)), v(copied("v", call.v)) {}

  int gpu() const { return ws.device_index(); }
  TensorView allocate(DType dtype, std::initializer_list<std::int64_t> shape) {
    TensorView view(static_cast<void*>(nullptr), dtype, shape);
    view.data = ws.allocate_bytes(static_cast<std::size_t>(view.numel()) * dtype_bytes(dtype));
    view.device = Device::cuda;
    view.device_index = gpu();
    return view;
  }
  void fetch(const Tensor& to, const TensorView& from) const { cuda::copy_to_host(to.view().data, from.data, to.bytes(), gpu()); }

  const AttentionInputs host;
  DeviceWorkspace ws;
  const TensorView q, k, v;

 private:
  TensorView copied(const char* name, const TensorView& from) {
    if (from.rank != 4 || !from.is_contiguous()) {
      throw Error("attend", std::string(name) + ": expected contiguous [B,S,H,D] to copy to a GPU, got " + from.describe());
    }
    const TensorView to = allocate(from.dtype, {from.size(0), from.size(1), from.size(2), from.size(3)});
    cuda::copy_to_device(to.data, from.data, static_cast<std::size_t>(from.numel()) * dtype_bytes(from.dtype), gpu());
    return to;
  }
};

namespace {

using Clock = std::chrono::steady_clock;

class GpuRunner : public CallRunner {
 public:
  GpuRunner(std::shared_ptr<GpuCall> call, const AttentionConfig& config, Workspace& ws)
      : call_(std::move(call)), config_(config), host_ws_(ws), out_(call_->q.dtype, call_->q.shape.data(), 4) {
    const TensorView& q = call_->q;
    context_.grid = call_->host.context.grid;
    const Executor& executor = executor_for(config.executor, q.dtype, q.size(3), {Device::cuda, call_->gpu()});
    options_.executor = executor.name;
    if (const auto* skip = std::get_if<SkipSoftmax>(&config.method)) {
      options_.skip_threshold_log2 = SkipTarget(*skip, {}).threshold_log2(context_, call_->k.size(1), executor, {});
    }
    device_out_ = call_->allocate(q.dtype, {q.size(0), q.size(1), q.size(2), q.size(3)});
    options_.skip_counts = call_->allocate(DType::i64, {2});
  }

  CallRun run() override {
    const Workspace::Scope scope(host_ws_);
    const DeviceWorkspace::Scope device_scope(call_->ws);
    const auto start = Clock::now();
    CallRun result;
    const TilePlan plan = make(result.selected);
    const DevicePlan device_plan(plan, call_->ws);
    result.executor = options_.executor;
    result.plan_seconds = std::chrono::duration<double>(Clock::now() - start).count();
    std::array<std::int64_t, 2> counts{};  // tested, skipped
    cuda::copy_to_device(options_.skip_counts.data, counts.data(), sizeof(counts), call_->gpu());
    const auto queue = [&] { attend(device_plan, call_->q, call_->k, call_->v, device_out_, options_, call_->ws); };
    result.attend_seconds = cuda::seconds_of(queue, call_->gpu());
    cuda::copy_to_host(counts.data(), options_.skip_counts.data, sizeof(counts), call_->gpu());
    result.density = plan.density() * skip_softmax_share(counts[0], counts[1]);
    return result;
  }
  TensorView out() override {
    call_->fetch(out_, device_out_);
    return out_;
  }
  TensorView lse() override {
    const TensorView& q = call_->q;
    if (lse_.empty()) {
      lse_ = Tensor(DType::f32, {q.size(0), q.size(2), q.size(1)});
      device_lse_ = call_->allocate(DType::f32, {q.size(0), q.size(2), q.size(1)});
    }
    options_.stats.lse = device_lse_;
    run();
    options_.stats.lse = {};
    call_->fetch(lse_, device_lse_);
    return lse_;
  }

 private:
  TilePlan make(SelectReport& report) {
    if (std::optional<TilePlan> plan = plan_of(call_->host, config_, host_ws_, &report)) return std::move(*plan);
    return TilePlan::dense(plan_geometry(call_->host.q, call_->host.k, {}), DenseReason::requested, &host_ws_);
  }

  std::shared_ptr<GpuCall> call_;
  AttentionConfig config_;
  Workspace& host_ws_;
  StepContext context_;
  AttendOptions options_;
  Tensor out_, lse_;
  TensorView device_out_, device_lse_;
};

}  // namespace

void check_gpu(int gpu) { const DeviceWorkspace ws(gpu); }

std::shared_ptr<GpuCall> on_gpu(const AttentionInputs& call, int gpu) { return std::make_shared<GpuCall>(call, gpu); }

std::unique_ptr<CallRunner> gpu_runner(std::shared_ptr<GpuCall> call, const AttentionConfig& config, Workspace& ws) {
  return std::make_unique<GpuRunner>(std::move(call), config, ws);
}

}  // namespace winnow::report
