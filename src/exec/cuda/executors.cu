// From an attend() call on a GPU to the kernels: the checks that they need, scratch, means, launch.
#include "exec/cuda/executors.h"

#include <algorithm>
#include <cmath>

#include "exec/cuda/attend_cuda.h"
#include "exec/cuda/runtime.h"
#include "winnow/cuda.h"

namespace winnow {

namespace {

[[noreturn]] void refuse(const char* argument, const std::string& expected, const std::string& got) {
  throw Error("attend", std::string(argument) + ": expected " + expected + ", got " + got);
}

// The memory of a [B,S,H,D] tensor, which the device reads in pieces of 16 bytes.
void check_tensor(const char* name, const void* data, const Strides& strides, std::int64_t B, std::int64_t S, std::int64_t H, int gpu) {
  if (B * S * H == 0) return;
  if (reinterpret_cast<std::uintptr_t>(data) % cuda::kAlignment != 0) refuse(name, "a 16-byte aligned address", "another");
  // An axis of extent 1 is never stepped over; its stride may be anything.
  const std::pair<std::int64_t, std::int64_t> axes[] = {{B, strides.batch}, {S, strides.token}, {H, strides.head}};
  for (const auto& [extent, stride] : axes) {
    if (extent > 1 && (stride % 8 != 0 || stride <= 0 || stride >= std::int64_t{1} << 39)) {
      refuse(name, "strides of B, S and H that are positive multiples of 8 elements", std::to_string(stride));
    }
  }
  cudaPointerAttributes found{};
  cuda::check(cudaPointerGetAttributes(&found, data), "attend", name);
  const bool device = found.type == cudaMemoryTypeDevice || found.type == cudaMemoryTypeManaged;
  if (!device || found.device != gpu) {
    refuse(name, "an address in the memory of cuda:" + std::to_string(gpu),
           device ? "one of cuda:" + std::to_string(found.device) : "one that no GPU owns");
  }
}

void check_call(const AttendArgs& a, int gpu) {
  if (a.out_dtype != a.dtype) refuse("out", std::string("the dtype of q, ") + dtype_name(a.dtype), dtype_name(a.out_dtype));
  if (!(a.scale > 0.0F)) refuse("scale", "a positive number", std::to_string(a.scale));
  check_tensor("q", a.q, a.q_strides, a.B, a.Sq, a.H, gpu);
  check_tensor("k", a.k, a.k_strides, a.B, a.Sk, a.Hk, gpu);
  check_tensor("v", a.v, a.v_strides, a.B, a.Sk, a.Hk, gpu);
  check_tensor("out", a.out, a.out_strides, a.B, a.Sq, a.H, gpu);
}

cuda::StridedTensor strided(const void* data, const Strides& s) {
  return {const_cast<void*>(data), s.batch, s.token, s.head};  // inputs are only read
}

// A contiguous [B,S,H,D] tensor.
cuda::StridedTensor contiguous(void* data, std::int64_t S, std::int64_t H, std::int64_t D) { return {data, S * H * D, H * D, D}; }

// Sizes of a call's tensors in tokens: with a layout, tiles are filled up.
std::int64_t queries_of(const PlanGeometry& g, const DevicePlan::Lists& lists) {
  return lists.tile_queries != nullptr ? g.Gq() * cuda::kTileQ : g.Sq;
}
std::int64_t keys_of(const PlanGeometry& g, const DevicePlan::Lists& lists) {
  return lists.tile_keys != nullptr ? g.Gk() * cuda::kTileK : g.Sk;
}

std::size_t mean_elements(std::int64_t B, std::int64_t Sk, std::int64_t Hk, std::int64_t D) {
  return static_cast<std::size_t>(B * ((Sk + cuda::kTileK - 1) / cuda::kTileK) * Hk * D);
}

cuda::AttendCall to_call(const AttendArgs& a) {
  const DevicePlan::Lists& lists = a.device_plan->lists();
  cuda::AttendCall call;
  call.operand = a.dtype == DType::bf16 ? cuda::Operand::bf16 : cuda::Operand::f16;
  call.D = a.D;
  call.B = a.B;
  call.H = a.H;
  call.Hk = a.Hk;
  call.Sq = a.Sq;
  call.Sk = a.Sk;
  call.q = strided(a.q, a.q_strides);
  call.k = strided(a.k, a.k_strides);
  call.v = strided(a.v, a.v_strides);
  call.out = strided(a.out, a.out_strides);
  call.offsets = lists.offsets;
  call.tiles = lists.tiles;
  call.order = lists.order;
  call.key_lengths = lists.key_lengths;
  call.mean_bits = lists.mean_bits;
  call.lse = {a.lse, a.lse_strides.batch, a.lse_strides.head, a.lse_strides.token};
  call.inv_l = {a.inv_l, a.inv_l_strides.batch, a.inv_l_strides.head, a.inv_l_strides.token};
  call.scale = a.scale;
  call.skip_threshold_log2 = a.skip_threshold_log2;
  call.granules = reinterpret_cast<std::uint64_t*>(a.skip_counts);
  call.list_period = lists.period;
  call.layout = {lists.query_tokens, lists.query_rows, lists.key_tokens, lists.tile_queries, lists.tile_keys, lists.mean_log2};
  return call;
}

// Scratch for q, k, v and out with all tiles of the layouts filled up, and the kernels that fill q, k and v.
void into_tiles(cuda::AttendCall& call, const AttendArgs& a, DeviceWorkspace& ws, cudaStream_t stream) {
  const PlanGeometry& g = a.device_plan->geometry();
  const DevicePlan::Lists& lists = a.device_plan->lists();
  call.Sq = queries_of(g, lists);
  call.Sk = keys_of(g, lists);
  const auto gather = [&](cuda::StridedTensor& x, const std::int32_t* tokens, std::int64_t rows, std::int64_t H) {
    const cuda::StridedTensor to = contiguous(ws.allocate<std::uint16_t>(static_cast<std::size_t>(a.B * rows * H * a.D)), rows, H, a.D);
    if (tokens != nullptr) cuda::gather_tokens(to.data, x, tokens, a.B, rows, H, a.D, stream);
    x = to;
  };
  gather(call.q, lists.query_tokens, call.Sq, a.H);
  gather(call.k, lists.key_tokens, call.Sk, a.Hk);
  gather(call.v, lists.key_tokens, call.Sk, a.Hk);
  gather(call.out, nullptr, call.Sq, a.H);
}

// Scratch for K's and V's virtual keys, and the kernel that fills it.
void add_means(cuda::AttendCall& call, const AttendArgs& a, DeviceWorkspace& ws, cudaStream_t stream) {
  const std::int64_t tiles = (call.Sk + cuda::kTileK - 1) / cuda::kTileK;
  for (const auto& [mean, from] : {std::pair{&call.k_mean, &call.k}, std::pair{&call.v_mean, &call.v}}) {
    *mean = contiguous(ws.allocate<std::uint16_t>(mean_elements(a.B, call.Sk, a.Hk, a.D)), tiles, a.Hk, a.D);
    cuda::key_means(mean->data, *from, call.operand, a.B, call.Sk, a.Hk, a.D, call.key_lengths, call.layout.tile_keys, stream);
  }
}

template <class F>
void run(const AttendArgs& a, DeviceWorkspace& ws, F launch) {
  check_call(a, ws.device_index());
  const cuda::OnDevice on(ws.device_index());
  const auto stream = static_cast<cudaStream_t>(a.stream);
  cuda::AttendCall call = to_call(a);
  call.scratch = ws.allocate<std::int32_t>(static_cast<std::size_t>(sm90::scratch_words(a.device_plan->geometry().rows())));
  const bool layout = call.layout.tile_keys != nullptr;
  if (layout) into_tiles(call, a, ws, stream);
  if (call.mean_bits != nullptr) add_means(call, a, ws, stream);
  launch(call, stream);
  if (layout) {
    cuda::scatter_tokens(strided(a.out, a.out_strides), call.out.data, call.layout.query_rows, call.lse, call.inv_l, a.B, a.Sq, call.Sq,
                         a.H, a.D, stream);
  }
}

}  // namespace

void run_sm90(const AttendArgs& args, DeviceWorkspace& ws) { run(args, ws, sm90::launch_attend); }
void run_sm80(const AttendArgs& args, DeviceWorkspace& ws) { run(args, ws, sm80::launch_attend); }

std::size_t attend_workspace_bytes(const DevicePlan& plan, const TensorView& q, const TensorView& k) {
  if (q.rank != 4 || k.rank != 4) throw Error("attend", "q, k: expected [B,S,H,D], got " + q.describe() + " and " + k.describe());
  const auto rounded = [](std::size_t bytes) { return (std::max<std::size_t>(bytes, 1) + 63) / 64 * 64; };  // as a workspace does
  std::size_t bytes = rounded(static_cast<std::size_t>(sm90::scratch_words(plan.geometry().rows())) * sizeof(std::int32_t));
  const std::int64_t B = k.size(0), H = q.size(2), Hk = k.size(2), D = k.size(3);
  const std::int64_t Sq = queries_of(plan.geometry(), plan.lists()), Sk = keys_of(plan.geometry(), plan.lists());
  const auto add_pair = [&](std::size_t elements) { bytes += 2 * rounded(elements * sizeof(std::uint16_t)); };
  if (plan.lists().tile_keys != nullptr) {
    add_pair(static_cast<std::size_t>(B * Sq * H * D));
    add_pair(static_cast<std::size_t>(B * Sk * Hk * D));
  }
  if (plan.lists().mean_bits != nullptr) add_pair(mean_elements(B, Sk, Hk, D));
  return bytes;
}

}  // namespace winnow
