// A Problem on a GPU: its tensors copied to device memory with the guards around them, run through the public interface.
#pragma once

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include "core/threads.h"
#include "exec/attend_case.h"
#include "winnow/cuda.h"

namespace winnow {

inline void cuda_ok(cudaError_t e) { ASSERT_EQ(e, cudaSuccess) << cudaGetErrorString(e); }

// Bytes in device memory.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t size) : size_(size) { cuda_ok(cudaMalloc(&data_, std::max<std::size_t>(size, 1))); }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

// A Buffer's copy in device memory, gaps and guards included.
class OnGpu {
 public:
  explicit OnGpu(const Buffer& host) : memory_(host.bytes().size()), view(host.view) {
    view.data = memory_.data() + (static_cast<const std::byte*>(host.view.data) - host.bytes().data());
    view.device = Device::cuda;
    upload(host);
  }
  // And waits: a copy from pageable memory may return before the device has it, and streams of their own do not wait for it.
  void upload(const Buffer& host) {
    cuda_ok(cudaMemcpy(memory_.data(), host.bytes().data(), memory_.size(), cudaMemcpyHostToDevice));
    cuda_ok(cudaDeviceSynchronize());
  }
  void download(Buffer& host) const { cuda_ok(cudaMemcpy(host.bytes().data(), memory_.data(), memory_.size(), cudaMemcpyDeviceToHost)); }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> now(memory_.size());
    cuda_ok(cudaMemcpy(now.data(), memory_.data(), memory_.size(), cudaMemcpyDeviceToHost));
    return now;
  }
  bool unchanged(const Buffer& host) const { return bytes() == host.bytes(); }

 private:
  DeviceBytes memory_;

 public:
  TensorView view;
};

// Two counters, zero at first.
class DeviceCounts {
 public:
  DeviceCounts() : memory_(2 * sizeof(std::int64_t)), view(memory_.data(), DType::i64, {2}) {
    view.device = Device::cuda;
    cuda_ok(cudaMemset(memory_.data(), 0, memory_.size()));
  }
  SkipCounts read() const {
    SkipCounts counts;
    std::int64_t both[2] = {};
    cuda_ok(cudaMemcpy(both, memory_.data(), sizeof(both), cudaMemcpyDeviceToHost));
    counts.tested = both[0];
    counts.skipped = both[1];
    return counts;
  }

 private:
  DeviceBytes memory_;

 public:
  TensorView view;
};

// Tests of this class need a GPU, and say so where there is none.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gpus().empty()) GTEST_SKIP() << "no GPU: needs " << why_none();
  }
  static std::string why_none() {
    for (const ExecutorInfo& info : executors()) {
      if (info.device == Device::cuda) return info.why_not;
    }
    return {};
  }
};

inline std::vector<const Executor*> gpu_executors() {
  std::vector<const Executor*> found;
  for (const Executor& e : executor_records()) {
    if (e.device() == Device::cuda && e.missing().empty()) found.push_back(&e);
  }
  return found;
}

// The workspace that all cases share, as they would in an application.
inline DeviceWorkspace& device_workspace() {
  static DeviceWorkspace ws(0, 1U << 26U);
  return ws;
}

// A problem's inputs in device memory. Outputs are of the inputs' dtype.
struct GpuProblem {
  explicit GpuProblem(Problem& p, std::int64_t out_pad = 0, bool out_heads_first = false)
      : problem(p), q(p.q), k(p.k), v(p.v), pad(out_pad), heads_first(out_heads_first) {}

  // Runs into poisoned outputs and checks that every element was written, and nothing else. Without inv_l, a GPU may use
  // another kernel.
  Outcome run(const std::string& executor, const TilePlan& plan, bool with_inv_l = true) {
    const DeviceWorkspace::Scope scope(device_workspace());
    return run(executor, DevicePlan(plan, device_workspace()), with_inv_l);
  }
  Outcome run(const std::string& executor, const DevicePlan& plan, bool with_inv_l = true) {
    const Shape& s = problem.shape;
    Buffer out(problem.q.view.dtype, {s.B, s.Sq, s.H, s.D}, pad, heads_first);
    Buffer lse(DType::f32, {s.B, s.H, s.Sq}, 0);
    Buffer inv_l(DType::f32, {s.B, s.H, s.Sq}, 0);
    const OnGpu device_out(out), device_lse(lse), device_inv_l(inv_l);
    const DeviceCounts counts;
    DeviceWorkspace& ws = device_workspace();
    const std::size_t used = ws.used_bytes();
    AttendOptions options = problem.options;
    options.executor = executor;
    options.stats.lse = device_lse.view;
    if (with_inv_l) options.stats.inv_l = device_inv_l.view;
    options.skip_counts = counts.view;
    const AttendResult r = attend(plan, q.view, k.view, v.view, device_out.view, options, ws);
    EXPECT_EQ(r.executor, executor);
    EXPECT_EQ(ws.used_bytes(), used);
    cuda_ok(cudaDeviceSynchronize());
    device_out.download(out);
    device_lse.download(lse);
    device_inv_l.download(inv_l);
    EXPECT_TRUE(out.intact() && lse.intact() && inv_l.intact()) << "wrote outside of an output";
    EXPECT_FALSE(out.has_poison() || lse.has_poison() || (with_inv_l && inv_l.has_poison())) << "left an output unwritten";
    EXPECT_TRUE(q.unchanged(problem.q) && k.unchanged(problem.k) && v.unchanged(problem.v)) << "changed an input";
    return {out.values(), lse.values(), with_inv_l ? inv_l.values() : std::vector<float>{}, counts.read()};
  }

  Problem& problem;
  OnGpu q, k, v;
  std::int64_t pad;
  bool heads_first;
};

inline float rounded(DType dtype, double x) {
  const auto f = static_cast<float>(x);
  if (dtype == DType::f32) return f;
  return dtype == DType::bf16 ? to_f32(to_bf16(f)) : to_f32(to_f16(f));
}

// The keys or values of one head as f32: n real ones, then the mean of each tile of 64 in the operand type.
inline std::vector<float> with_means(const TensorView& t, std::int64_t b, std::int64_t h, std::int64_t n) {
  const std::int64_t D = t.size(3), tiles = (n + 63) / 64;
  std::vector<float> x(static_cast<std::size_t>((n + tiles) * D));
  std::vector<double> sums(static_cast<std::size_t>(tiles * D));
  for (std::int64_t j = 0; j < n; ++j) {
    for (std::int64_t d = 0; d < D; ++d) {
      const float value = get(t, b * t.stride(0) + j * t.stride(1) + h * t.stride(2) + d);
      x[static_cast<std::size_t>(j * D + d)] = value;
      sums[static_cast<std::size_t>(j / 64 * D + d)] += double{value};
    }
  }
  for (std::int64_t i = 0; i < tiles * D; ++i) {
    const auto count = static_cast<double>(std::min<std::int64_t>(64, n - i / D * 64));
    x[static_cast<std::size_t>(n * D + i)] = rounded(t.dtype, sums[static_cast<std::size_t>(i)] / count);
  }
  return x;
}

// Indices into with_means() of what a row of the plan computes.
inline std::vector<std::int64_t> keys_of(const TilePlan& plan, std::int64_t row, std::int64_t n) {
  std::vector<bool> mean(static_cast<std::size_t>((n + 63) / 64), plan.skipped() == Skipped::mean);
  std::vector<std::int64_t> keys;
  for (const Tier tier : {Tier::refine, Tier::skim}) {
    for (const std::int64_t tile : plan.tiles(tier, row)) {
      mean[static_cast<std::size_t>(tile)] = false;
      for (std::int64_t j = 64 * tile; j < std::min(n, 64 * (tile + 1)); ++j) keys.push_back(j);
    }
  }
  for (const std::int64_t tile : plan.excluded(row)) {
    if (tile < static_cast<std::int64_t>(mean.size())) mean[static_cast<std::size_t>(tile)] = false;
  }
  for (std::size_t tile = 0; tile < mean.size(); ++tile) {
    if (mean[tile]) keys.push_back(n + static_cast<std::int64_t>(tile));
  }
  return keys;
}

// One query's attention as a framework computes it in the operand type: f32 logits and softmax, probabilities and result
// rounded. FlashAttention's tests allow twice the error of that.
inline void one_query(const float* q, const std::vector<float>& k, const std::vector<float>& v, const std::vector<std::int64_t>& keys,
                      std::int64_t n, DType dtype, std::span<float> out) {
  const auto D = static_cast<std::int64_t>(out.size());
  std::vector<float> x(keys.size());
  float m = -std::numeric_limits<float>::infinity();
  for (std::size_t c = 0; c < keys.size(); ++c) {
    float dot = 0.0F;
    for (std::int64_t d = 0; d < D; ++d) dot += q[d] * k[static_cast<std::size_t>(keys[c] * D + d)];
    x[c] = dot / std::sqrt(static_cast<float>(D));
    if (keys[c] >= n) x[c] += std::log(static_cast<float>(std::min<std::int64_t>(64, n - 64 * (keys[c] - n))));
    m = std::max(m, x[c]);
  }
  float l = 0.0F;
  for (float& y : x) l += y = std::exp(y - m);
  std::vector<double> o(out.size());
  for (std::size_t c = 0; c < keys.size(); ++c) {
    const double weight = rounded(dtype, x[c] / l);
    for (std::int64_t d = 0; d < D; ++d) o[static_cast<std::size_t>(d)] += weight * v[static_cast<std::size_t>(keys[c] * D + d)];
  }
  for (std::size_t d = 0; d < o.size(); ++d) out[d] = rounded(dtype, o[d]);
}

inline std::vector<float> in_operand_type(const Problem& p, const TilePlan& plan) {
  const Shape& s = p.shape;
  const PlanGeometry& g = plan.geometry();
  std::vector<float> out(static_cast<std::size_t>(s.B * s.Sq * s.H * s.D));
  parallel_for(s.B * s.H * g.Gq(), [&](std::int64_t row, int) {
    const std::int64_t b = row / (s.H * g.Gq()), h = row / g.Gq() % s.H, hk = h / (s.H / s.Hk), n = g.keys(b);
    const std::vector<float> k = with_means(p.k.view, b, hk, n), v = with_means(p.v.view, b, hk, n);
    const std::vector<std::int64_t> keys = keys_of(plan, row, n);
    std::vector<float> q(static_cast<std::size_t>(s.D));
    const TensorView& t = p.q.view;
    const std::int64_t first = row % g.Gq() * g.tile_q;
    for (std::int64_t i = first; i < std::min(s.Sq, first + g.tile_q); ++i) {
      for (std::int64_t d = 0; d < s.D; ++d) {
        q[static_cast<std::size_t>(d)] = get(t, b * t.stride(0) + i * t.stride(1) + h * t.stride(2) + d);
      }
      float* to = out.data() + ((b * s.Sq + i) * s.H + h) * s.D;
      one_query(q.data(), k, v, keys, n, t.dtype, {to, static_cast<std::size_t>(s.D)});
    }
  });
  return out;
}

inline double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::fabs(double{a[i]} - b[i]);
    if (!(d <= most)) most = d;  // a NaN stays
  }
  return most;
}

// FlashAttention's rule on the largest error, a bound on the mean one, and the row statistics. `sharp`: one key takes nearly
// all of a row, where rounding the logits' operands is seen in full. `means`: virtual keys were rounded to the operand type.
inline void expect_like_attention(const Outcome& got, const Outcome& want, const std::vector<float>& in_type, DType dtype, bool means,
                                  bool sharp = false) {
  std::vector<float> rounded_want = want.out;
  for (float& x : rounded_want) x = rounded(dtype, x);
  const double slack = 2.0 * largest_difference(rounded_want, want.out);
  EXPECT_LE(largest_difference(got.out, want.out), 2.0 * largest_difference(in_type, want.out) + slack);
  if (!sharp) {
    EXPECT_LE(rel_l2(got.out, want.out), dtype == DType::bf16 ? 4e-3 : 6e-4);
  }
  double largest_lse = 0.0;
  for (const float x : want.lse) largest_lse = std::isfinite(x) ? std::max(largest_lse, std::fabs(double{x})) : largest_lse;
  const double unit = dtype == DType::bf16 ? 0x1p-9 : 0x1p-12;
  const double lse_tolerance = 2e-4 + 1e-6 * largest_lse + (means ? unit * (1.0 + 0.01 * largest_lse) : 0.0);
  for (std::size_t i = 0; i < want.lse.size(); ++i) {
    if (std::isinf(want.lse[i])) {
      ASSERT_EQ(got.lse[i], want.lse[i]) << "row " << i;
    } else {
      ASSERT_NEAR(got.lse[i], want.lse[i], lse_tolerance) << "row " << i;
    }
    if (!got.inv_l.empty()) {
      ASSERT_NEAR(got.inv_l[i], want.inv_l[i], (sharp ? 3e-2 : 2e-3) * want.inv_l[i]) << "row " << i;
    }
  }
}

}  // namespace winnow
