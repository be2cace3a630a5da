// Host side of the sm_90a attention kernel: checks, tensor maps, launch. No allocation, no synchronisation.
#include "exec/cuda/attend_cuda.h"

#include <cmath>
#include <string>

#include "exec/cuda/launch.h"
#include "winnow/error.h"

namespace winnow::sm90 {
namespace {

using cuda::AttendCall;
using cuda::Operand;
using cuda::StridedTensor;

void check(cudaError_t e, const char* what) {
  if (e != cudaSuccess) throw Error("attend", std::string(what) + ": " + cudaGetErrorString(e));
}

// cuTensorMapEncodeTiled from the driver that the runtime has loaded, so that nothing links to libcuda.
decltype(&cuTensorMapEncodeTiled) tensor_map_encoder() {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
          "cuTensorMapEncodeTiled");
    if (found != cudaDriverEntryPointSuccess)
      throw Error("attend", "the CUDA driver has no cuTensorMapEncodeTiled: expected 12.0 or later");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return encode;
}

CUtensorMap tensor_map(const char* name, const StridedTensor& t, Operand operand, std::int64_t B, std::int64_t S, std::int64_t H,
                       std::int64_t D) {
  const auto refuse = [&](const std::string& why) { throw Error("attend", std::string(name) + ": " + why); };
  if (reinterpret_cast<std::uintptr_t>(t.data) % 16 != 0) refuse("expected a 16-byte aligned address");
  // An axis of extent 1 is never stepped over; its stride may be anything.
  const std::int64_t extents[3] = {S, H, B};
  const std::int64_t strides[3] = {t.stride_s, t.stride_h, t.stride_b};
  cuuint64_t dims[4] = {static_cast<cuuint64_t>(D)}, bytes[3];
  for (int i = 0; i < 3; ++i) {
    dims[i + 1] = static_cast<cuuint64_t>(extents[i]);
    const std::int64_t stride = extents[i] == 1 ? D : strides[i];
    if (stride % 8 != 0 || stride <= 0 || stride >= std::int64_t{1} << 39) {
      refuse("expected strides that are positive multiples of 8 elements, got " + std::to_string(stride));
    }
    bytes[i] = static_cast<cuuint64_t>(stride) * 2;
  }
  const cuuint32_t box[4] = {kBoxCols, kBoxRows, 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult e =
      tensor_map_encoder()(&map, operand == Operand::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, t.data,
                           dims, bytes, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (e != CUDA_SUCCESS) refuse("the CUDA driver refused the tensor map, error " + std::to_string(static_cast<int>(e)));
  return map;
}

// Scratch, in words: the work counters of both kernels and the number of rows to redo, a flag per row, the rows to redo.
constexpr std::int64_t kCounters = 4;

using Launch = cudaError_t (*)(const KernelArgs&, int, cudaStream_t);

struct Variant {
  bool skip, pairs;
  Keys keys;
  Maximum maximum;
};

template <class T, int kD, bool kSkip, Maximum kMaximum>
Launch choose(const Variant& v) {
  if constexpr (kMaximum != Maximum::before) {  // which has a few rows to do
    if (v.pairs) return launch<T, kD, kSkip, Keys::listed, kMaximum, true>;
  }
  if (v.keys == Keys::listed) return launch<T, kD, kSkip, Keys::listed, kMaximum, false>;
  return v.keys == Keys::means ? launch<T, kD, kSkip, Keys::means, kMaximum, false> : launch<T, kD, kSkip, Keys::layout, kMaximum, false>;
}

template <class T, int kD, Maximum kMaximum>
Launch choose(const Variant& v) {
  if constexpr (kMaximum != Maximum::never) {
    if (v.skip) return choose<T, kD, true, kMaximum>(v);
  }
  return choose<T, kD, false, kMaximum>(v);
}

template <class T, int kD>
Launch choose(const Variant& v) {
  if (v.maximum == Maximum::never) return choose<T, kD, Maximum::never>(v);
  if (v.maximum == Maximum::beside) return choose<T, kD, Maximum::beside>(v);
  return choose<T, kD, Maximum::before>(v);
}

Launch choose(const AttendCall& call, const Variant& v) {
  if (call.operand == Operand::bf16) return call.D == 64 ? choose<__nv_bfloat16, 64>(v) : choose<__nv_bfloat16, 128>(v);
  return call.D == 64 ? choose<__half, 64>(v) : choose<__half, 128>(v);
}

}  // namespace

std::int64_t scratch_words(std::int64_t rows) { return kCounters + 2 * rows; }

void launch_attend(const AttendCall& call, CUstream_st* stream) {
  if (call.D != 64 && call.D != 128) throw Error("attend", "D: expected 64 or 128, got " + std::to_string(call.D));
  if (call.Hk < 1 || call.H % call.Hk != 0) {
    throw Error("attend", "H: expected a multiple of Hk = " + std::to_string(call.Hk) + ", got " + std::to_string(call.H));
  }
  if (!(call.scale > 0 && std::isfinite(call.scale))) {
    throw Error("attend", "scale: expected a positive number, got " + std::to_string(call.scale));
  }
  if (!(call.skip_threshold_log2 <= 0)) {
    throw Error("attend", "skip_threshold_log2: expected <= 0, got " + std::to_string(call.skip_threshold_log2));
  }
  const std::int64_t Gq = (call.Sq + kTileQ - 1) / kTileQ, Gk = (call.Sk + kTileK - 1) / kTileK;
  const std::int64_t rows = call.B * call.H * Gq;
  if (rows == 0) return;
  // Token coordinates of a copy are 32-bit and run up to one tile past the end.
  if (rows > INT32_MAX - 1024 || call.Sq > INT32_MAX - kTileQ || call.Sk > INT32_MAX - kTileQ) {
    throw Error("attend", "expected fewer than 2^31 query tiles and tokens");
  }

  KernelArgs args{};
  const std::int64_t keys = call.Sk == 0 ? 1 : call.Sk;  // a map cannot be empty; nothing is read through it then
  StridedTensor k = call.k, v = call.v;
  if (call.Sk == 0) k = v = call.q;
  args.q = tensor_map("q", call.q, call.operand, call.B, call.Sq, call.H, call.D);
  args.k = tensor_map("k", k, call.operand, call.B, keys, call.Hk, call.D);
  args.v = tensor_map("v", v, call.operand, call.B, keys, call.Hk, call.D);
  args.out = tensor_map("out", call.out, call.operand, call.B, call.Sq, call.H, call.D);
  if (call.mean_bits != nullptr) {
    args.k_mean = tensor_map("k_mean", call.k_mean, call.operand, call.B, Gk, call.Hk, call.D);
    args.v_mean = tensor_map("v_mean", call.v_mean, call.operand, call.B, Gk, call.Hk, call.D);
  }
  args.offsets = call.offsets;
  args.tiles = call.tiles;
  args.list_period = static_cast<int>(call.list_period != 0 ? call.list_period : rows);
  args.query_tokens = call.layout.query_tokens;
  args.tile_queries = call.layout.tile_queries;
  args.mean_log2 = call.layout.mean_log2;
  args.order = call.order;
  args.mean_bits = call.mean_bits;
  args.key_lengths = call.key_lengths;
  args.lse = call.lse.data;
  args.lse_stride_b = call.lse.stride_b;
  args.lse_stride_h = call.lse.stride_h;
  args.lse_stride_s = call.lse.stride_s;
  args.inv_l = call.inv_l.data;
  args.inv_l_stride_b = call.inv_l.stride_b;
  args.inv_l_stride_h = call.inv_l.stride_h;
  args.inv_l_stride_s = call.inv_l.stride_s;
  args.granules = reinterpret_cast<unsigned long long*>(call.granules);
  args.B = static_cast<int>(call.B);
  args.H = static_cast<int>(call.H);
  args.Hk = static_cast<int>(call.Hk);
  args.Sq = static_cast<int>(call.Sq);
  args.Sk = static_cast<int>(call.Sk);
  args.Gq = static_cast<int>(Gq);
  args.Gk = static_cast<int>(Gk);
  args.rows = static_cast<int>(rows);
  args.mean_words = static_cast<int>(cuda::mean_words(call.Sk));
  args.scale_log2 = static_cast<float>(call.scale * 1.4426950408889634);
  // Keeps probabilities far from the largest number of the operand type, and sums over any row from the largest f32.
  args.slack = (call.operand == Operand::f16 ? 8.f : 64.f) / args.scale_log2;
  args.raw_per_log2 = 1.f / args.scale_log2;
  args.skip_below = call.skip_threshold_log2 / args.scale_log2;

  int device = 0, multiprocessors = 0, major = 0, minor = 0;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "device");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "device");
  if (major != 9 || minor != 0) {
    throw Error("attend",
                "expected a GPU of compute capability 9.0 (H100, H200), got " + std::to_string(major) + "." + std::to_string(minor));
  }
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "device");
  const int ctas = static_cast<int>(std::min<std::int64_t>(rows, multiprocessors));
  args.next_item = call.scratch;
  check(cudaMemsetAsync(call.scratch, 0, static_cast<std::size_t>(kCounters + rows) * sizeof(std::int32_t), stream), "scratch");
  Variant variant{};
  variant.skip = call.skip_threshold_log2 > -INFINITY;
  variant.keys = call.layout.tile_keys != nullptr ? Keys::layout : call.mean_bits != nullptr ? Keys::means : Keys::listed;
  variant.maximum = variant.skip || call.inv_l.data != nullptr ? Maximum::beside : Maximum::never;
  // With few rows, an item more or less per CTA weighs more than the reads saved.
  variant.pairs = call.offsets == nullptr && variant.keys == Keys::listed && rows >= 4 * multiprocessors;
  args.redo_count = call.scratch + 2;
  args.redo_flags = call.scratch + kCounters;
  args.redo_rows = args.redo_flags + rows;
  check(choose(call, variant)(args, ctas, stream), "launch");
  args.next_item = call.scratch + 1;
  args.item_count = args.redo_count;
  args.order = args.redo_rows;
  args.granules = nullptr;  // counted
  variant.maximum = Maximum::before;
  variant.pairs = false;
  check(choose(call, variant)(args, ctas, stream), "launch");
}

}  // namespace winnow::sm90
