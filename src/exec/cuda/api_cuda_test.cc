// The interface to a GPU: what is refused, memory, streams, graphs, sizes past 2^31.
#include <numeric>

#include "exec/cuda/cuda_case.h"
#include "winnow/error.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

using GpuApi = GpuTest;

TilePlan dense(const Shape& s) { return TilePlan::dense(geometry_of(s), DenseReason::requested); }

// One call with everything in place, to be spoilt.
struct Call {
  static constexpr Shape kShape = {.H = 4, .Hk = 2, .Sq = 130, .Sk = 100, .D = 64};
  explicit Call(DType dtype = DType::bf16) : problem(kShape, dtype), host_out(dtype, {1, 130, 4, 64}) {}

  Problem problem;
  Buffer host_out;
  OnGpu device_q{problem.q}, device_k{problem.k}, device_v{problem.v}, device_out{host_out};
  TensorView q = device_q.view, k = device_k.view, v = device_v.view, out = device_out.view;
  AttendOptions options;
  TilePlan plan = dense(kShape);

  std::string error() {
    const DeviceWorkspace::Scope scope(device_workspace());
    try {
      const DevicePlan device_plan(plan, device_workspace());
      attend(device_plan, q, k, v, out, options, device_workspace());
    } catch (const Error& e) {
      return e.what();
    }
    cuda_ok(cudaDeviceSynchronize());
    return "no error";
  }
};

TEST_F(GpuApi, RefusesWhatDoesNotFit) {
  EXPECT_EQ(Call().error(), "no error");
  {
    Call c;
    c.k = c.problem.k.view;
    EXPECT_EQ(c.error(), "[attend] k: expected memory of cuda:0, like the workspace, got memory of the cpu");
  }
  {
    Call c;
    c.v.device_index = 1;
    EXPECT_EQ(c.error(), "[attend] v: expected memory of cuda:0, like the workspace, got memory of cuda:1");
  }
  {
    Call c;
    c.q.data = c.problem.q.view.data;  // says that it is on the GPU, and is not
    EXPECT_EQ(c.error(), "[attend] q: expected an address in the memory of cuda:0, got one that no GPU owns");
  }
  {
    Call c;
    c.v.data = c.v.as<std::byte>() + 8;
    EXPECT_EQ(c.error(), "[attend] v: expected a 16-byte aligned address, got another");
  }
  {
    Call c;
    c.k.strides[1] = 132;
    EXPECT_EQ(c.error(), "[attend] k: expected strides of B, S and H that are positive multiples of 8 elements, got 132");
  }
  {
    Call c;
    c.out.dtype = DType::f16;
    EXPECT_EQ(c.error(), "[attend] out: expected the dtype of q, bf16, got f16");
  }
  {
    Call c;
    c.out = c.q;
    EXPECT_EQ(c.error(), "[attend] out: expected memory of its own, got an overlap with q");
  }
  {
    Call c;
    c.options.scale = -1.0F;
    EXPECT_THAT(c.error(), HasSubstr("[attend] scale: expected a positive number"));
  }
  {
    Call c;
    c.options.skip_counts = c.device_k.view;
    EXPECT_THAT(c.error(), HasSubstr("[attend] skip_counts: expected contiguous [2] i64"));
  }
  {
    Call c(DType::f32);
    EXPECT_THAT(c.error(), HasSubstr("takes bf16, f16, not f32"));
  }
  {
    Call c;
    for (TensorView* t : {&c.q, &c.k, &c.v, &c.out}) t->shape[3] = 40;
    EXPECT_THAT(c.error(), HasSubstr("takes a head dim of 64 or 128, not 40"));
  }
  {
    Call c;
    c.options.executor = "scalar_f32";
    EXPECT_THAT(c.error(), HasSubstr("[attend] executor: scalar_f32 works on memory of the cpu, not of cuda:0"));
  }
  {
    Call c;
    PlanGeometry g = geometry_of(Call::kShape, 128);
    c.plan = TilePlan::dense(g, DenseReason::requested);
    EXPECT_THAT(c.error(), HasSubstr("[cuda] plan: expected tiles of 128 queries x 64 keys"));
  }
  {
    Call c;
    Workspace ws;
    EXPECT_THROW(attend(c.plan, c.q, c.k, c.v, c.out, {}, ws), Error);
  }
  EXPECT_THROW(DeviceWorkspace(99), Error);
}

// A workspace of the announced size is enough, and is given back.
TEST_F(GpuApi, MemoryIsAnnounced) {
  const Shape shape = {.B = 2, .H = 4, .Hk = 2, .Sq = 500, .Sk = 700, .D = 128};
  Problem problem(shape, DType::bf16);
  const OnGpu q(problem.q), k(problem.k), v(problem.v), out(problem.q);
  PlanGeometry g = geometry_of(shape);
  g.key_lengths = {700, 333};
  std::vector<TilePlan> plans;
  plans.push_back(dense(shape));
  plans.push_back(TilePlan::dense(g, DenseReason::requested));
  plans.push_back(PlanBuilder::from_rows(g, Skipped::drop, random_rows(g, 0.5, 0, 3)));
  plans.push_back(PlanBuilder::from_rows(g, Skipped::mean, random_rows(g, 0.5, 0, 3)));
  g = geometry_of(shape);
  g.query_layout = make_layout({.num_tokens = g.Sq, .spans = std::vector<TokenSpan>{{0, 300}, {300, 500}}}, {}, g.tile_q);
  g.key_layout = make_layout({.num_tokens = g.Sk, .spans = std::vector<TokenSpan>{{0, 630}, {630, 700}}}, {}, g.tile_k);
  plans.push_back(TilePlan::dense(g, DenseReason::requested));
  plans.push_back(PlanBuilder::from_rows(g, Skipped::mean, random_rows(g, 0.5, 0, 3)));
  for (const TilePlan& plan : plans) {
    DeviceWorkspace plan_ws(0, DevicePlan::bytes(plan));
    const std::size_t taken = plan_ws.system_allocations();
    const DevicePlan device_plan(plan, plan_ws);
    EXPECT_EQ(plan_ws.system_allocations(), taken);
    EXPECT_EQ(plan_ws.used_bytes(), DevicePlan::bytes(plan));
    const std::size_t bytes = attend_workspace_bytes(device_plan, q.view, k.view);
    for (const Executor* e : gpu_executors()) {
      DeviceWorkspace ws(0, bytes);
      attend(device_plan, q.view, k.view, v.view, out.view, {.executor = e->name}, ws);
      EXPECT_EQ(ws.system_allocations(), 1U) << e->name;
      EXPECT_EQ(ws.peak_bytes(), bytes) << e->name;
      EXPECT_EQ(ws.used_bytes(), 0U) << e->name;
      cuda_ok(cudaDeviceSynchronize());
    }
  }
}

TEST_F(GpuApi, EmptyProblemsAreFine) {
  for (const Executor* e : gpu_executors()) {
    for (const auto& [Sq, Sk] : {std::pair{0, 5}, {5, 0}}) {
      Problem problem({.Sq = Sq, .Sk = Sk, .D = 64}, DType::bf16);
      GpuProblem gpu(problem);
      for (const float x : gpu.run(e->name, dense(problem.shape)).out) EXPECT_EQ(x, 0.0F);
    }
  }
}

class Stream {
 public:
  Stream() { cuda_ok(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

TEST_F(GpuApi, CallsCanBeCapturedInAGraph) {
  const Shape shape = {.H = 4, .Hk = 4, .Sq = 1000, .Sk = 1000, .D = 128};
  Problem problem(shape, DType::bf16), other(shape, DType::bf16);
  other.q.fill_random(77);
  const PlanGeometry g = geometry_of(shape);
  const Stream stream;
  for (const Executor* e : gpu_executors()) {
    for (const Skipped skipped : {Skipped::drop, Skipped::mean}) {
      OnGpu q(problem.q), k(problem.k), v(problem.v), out(problem.q);
      DeviceWorkspace ws;
      const DevicePlan plan(PlanBuilder::from_rows(g, skipped, random_rows(g, 0.5, 0, 3)), ws, stream.get());
      const auto call = [&] { attend(plan, q.view, k.view, v.view, out.view, {.executor = e->name, .stream = stream.get()}, ws); };
      call();  // loads the kernels, sizes the workspace
      cuda_ok(cudaStreamSynchronize(stream.get()));
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      cuda_ok(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
      call();
      cuda_ok(cudaStreamEndCapture(stream.get(), &graph));
      cuda_ok(cudaGraphInstantiate(&exec, graph, 0));
      const auto before = out.bytes();
      q.upload(other.q);
      cuda_ok(cudaGraphLaunch(exec, stream.get()));
      cuda_ok(cudaStreamSynchronize(stream.get()));
      const auto replayed = out.bytes();
      EXPECT_NE(replayed, before) << e->name;
      call();
      cuda_ok(cudaStreamSynchronize(stream.get()));
      EXPECT_EQ(out.bytes(), replayed) << e->name;
      cuda_ok(cudaGraphExecDestroy(exec));
      cuda_ok(cudaGraphDestroy(graph));
    }
  }
}

// Two streams with a workspace each work at the same time and get what one alone gets.
TEST_F(GpuApi, StreamsDoNotDisturbEachOther) {
  const Shape shape = {.H = 8, .Hk = 8, .Sq = 2000, .Sk = 2000, .D = 64};
  Problem problem(shape, DType::bf16);
  const OnGpu q(problem.q), k(problem.k), v(problem.v), alone(problem.q), first(problem.q), second(problem.q);
  const PlanGeometry g = geometry_of(shape);
  const TilePlan host_plan = PlanBuilder::from_rows(g, Skipped::mean, random_rows(g, 0.4, 0, 3));
  for (const Executor* e : gpu_executors()) {
    DeviceWorkspace ws[2];
    const DevicePlan plan(host_plan, ws[0]);
    attend(plan, q.view, k.view, v.view, alone.view, {.executor = e->name}, ws[0]);
    cuda_ok(cudaDeviceSynchronize());
    const Stream streams[2];
    for (int i = 0; i < 20; ++i) {
      attend(plan, q.view, k.view, v.view, first.view, {.executor = e->name, .stream = streams[0].get()}, ws[0]);
      attend(plan, q.view, k.view, v.view, second.view, {.executor = e->name, .stream = streams[1].get()}, ws[1]);
    }
    cuda_ok(cudaDeviceSynchronize());
    EXPECT_EQ(first.bytes(), alone.bytes()) << e->name;
    EXPECT_EQ(second.bytes(), alone.bytes()) << e->name;
  }
}

TEST_F(GpuApi, SkipCountsAreAddedTo) {
  const Shape shape = {.Sq = 300, .Sk = 700, .D = 64};
  Problem problem(shape, DType::bf16);
  const OnGpu q(problem.q), k(problem.k), v(problem.v), out(problem.q);
  const DevicePlan plan(dense(shape), device_workspace());
  for (const Executor* e : gpu_executors()) {
    const DeviceCounts counts;
    AttendOptions options;
    options.executor = e->name;
    options.skip_threshold_log2 = -2.0F;
    options.skip_counts = counts.view;
    attend(plan, q.view, k.view, v.view, out.view, options, device_workspace());
    const SkipCounts once = counts.read();
    attend(plan, q.view, k.view, v.view, out.view, options, device_workspace());
    const SkipCounts twice = counts.read();
    EXPECT_GT(once.tested, 0);
    EXPECT_EQ(twice.tested, 2 * once.tested) << e->name;
    EXPECT_EQ(twice.skipped, 2 * once.skipped) << e->name;
  }
}

// Random numbers that repeat after a prime number of elements: an offset that lost its upper bits would find others.
class Repeated {
 public:
  static constexpr std::int64_t kPeriod = 33554393;
  explicit Repeated(std::uint64_t seed) : host_(static_cast<std::size_t>(kPeriod)) {
    std::mt19937_64 random(seed);
    for (bf16& x : host_) x = to_bf16(static_cast<float>(static_cast<std::int64_t>(random() >> 40U) - (1 << 23)) * 0x1p-22F);
  }
  bf16 at(std::int64_t i) const { return host_[static_cast<std::size_t>(i % kPeriod)]; }
  void fill(std::byte* device, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; i += kPeriod) {
      cuda_ok(cudaMemcpy(device + 2 * i, i == 0 ? static_cast<const void*>(host_.data()) : device,
                         static_cast<std::size_t>(2 * std::min(kPeriod, n - i)), cudaMemcpyDefault));
    }
  }

 private:
  std::vector<bf16> host_;
};

TEST_F(GpuApi, OffsetsPast31Bits) {
  constexpr std::int64_t B = 2, S = 75600, H = 120, D = 128, kElements = B * S * H * D;
  static_assert(kElements > std::int64_t{1} << 31);
  std::size_t available = 0, total = 0;
  cuda_ok(cudaMemGetInfo(&available, &total));
  if (available < std::size_t{22} << 30U) GTEST_SKIP() << "needs 22 GiB of free device memory";
  const DeviceBytes q(2 * kElements), k(2 * kElements), v(2 * kElements), out(2 * kElements);
  const Repeated q_values(1), k_values(2), v_values(3);
  q_values.fill(q.data(), kElements);
  k_values.fill(k.data(), kElements);
  v_values.fill(v.data(), kElements);
  const auto view = [&](const DeviceBytes& t) {
    TensorView x(t.data(), DType::bf16, {B, S, H, D});
    x.device = Device::cuda;
    return x;
  };
  PlanGeometry g = geometry_of({.B = B, .H = H, .Sq = S, .Sk = S, .D = D});
  PlanBuilder builder(g, Skipped::drop);
  constexpr std::int64_t kListed = 12;
  const auto tile_of = [&](std::int64_t row, std::int64_t i) { return static_cast<std::int32_t>(i * 98 + row * 37 % 98); };
  for (std::int64_t& n : builder.counts(Tier::refine)) n = kListed;
  builder.allocate();
  for (std::int64_t row = 0; row < g.rows(); ++row) {
    for (std::int64_t i = 0; i < kListed; ++i) builder.tiles(Tier::refine, row)[static_cast<std::size_t>(i)] = tile_of(row, i);
  }
  const TilePlan host_plan = std::move(builder).finish();
  const DeviceWorkspace::Scope scope(device_workspace());
  const DevicePlan plan(host_plan, device_workspace());
  for (const Executor* e : gpu_executors()) {
    cuda_ok(cudaMemset(out.data(), 0xFF, out.size()));
    attend(plan, view(q), view(k), view(v), view(out), {.executor = e->name}, device_workspace());
    cuda_ok(cudaDeviceSynchronize());
    for (const auto& [b, h] : {std::pair{std::int64_t{0}, std::int64_t{0}}, {1, 60}, {1, 119}}) {
      for (const std::int64_t token : {0, 127, 128, 40000, 75519, 75599}) {
        // That query and the keys that its row lists, as a problem of their own.
        const std::int64_t row = g.row(b, h, token / 128);
        Problem one({.Sq = 1, .Sk = kListed * 64, .D = D}, DType::bf16);
        const auto element = [&](std::int64_t at_token, std::int64_t d) { return ((b * S + at_token) * H + h) * D + d; };
        for (std::int64_t d = 0; d < D; ++d) one.q.view.as<bf16>()[d] = q_values.at(element(token, d));
        for (std::int64_t j = 0; j < one.shape.Sk; ++j) {
          const std::int64_t key = std::int64_t{tile_of(row, j / 64)} * 64 + j % 64;
          for (std::int64_t d = 0; d < D; ++d) {
            one.k.view.as<bf16>()[j * D + d] = k_values.at(element(key, d));
            one.v.view.as<bf16>()[j * D + d] = v_values.at(element(key, d));
          }
        }
        std::vector<bf16> got(D);
        cuda_ok(cudaMemcpy(got.data(), out.data() + 2 * element(token, 0), 2 * D, cudaMemcpyDeviceToHost));
        std::vector<float> values;
        for (const bf16 x : got) values.push_back(to_f32(x));
        EXPECT_LE(rel_l2(values, one.define(dense(one.shape)).out), 6e-3) << e->name << " b" << b << " h" << h << " token " << token;
      }
    }
  }
}

}  // namespace
}  // namespace winnow
