// Virtual keys: means of 64 tokens of K or V.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "exec/cuda/attend_cuda.h"
#include "exec/cuda/runtime.h"

namespace winnow::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kColumns = 8;  // of a thread: 16 bytes

__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ float to_float(__half x) { return __half2float(x); }
__device__ void set(__nv_bfloat16& to, float x) { to = __float2bfloat16_rn(x); }
__device__ void set(__half& to, float x) { to = __float2half_rn(x); }

// One CTA per tile, head and batch entry. A token is read by kD / 8 threads; each thread sums every kRows-th token, and the first
// ones sum those sums: always in the same order.
template <class T, int kD>
__global__ void __launch_bounds__(kThreads)
    mean_of_tile(T* mean, StridedTensor x, int tiles, int heads, int S, const std::int32_t* key_lengths, const std::int32_t* tile_keys) {
  constexpr int kRowThreads = kD / kColumns;
  constexpr int kRows = kThreads / kRowThreads;
  __shared__ float sums[kRows][kD + 4];
  const std::int64_t cta = blockIdx.x;
  const auto head = static_cast<int>(cta % heads);
  const auto tile = static_cast<int>(cta / heads % tiles);
  const std::int64_t b = cta / heads / tiles;
  const int row = threadIdx.x / kRowThreads;
  const int column = threadIdx.x % kRowThreads * kColumns;
  const int keys = key_lengths != nullptr ? key_lengths[b] : S;
  const int count = min(tile_keys != nullptr ? tile_keys[tile] : kTileK, keys - tile * kTileK);  // <= 0: not a virtual key of anything

  const T* from = static_cast<const T*>(x.data) + b * x.stride_b + head * x.stride_h + column;
  float sum[kColumns] = {};
  for (int token = row; token < count; token += kRows) {
    const uint4 packed = *reinterpret_cast<const uint4*>(from + (std::int64_t{tile} * kTileK + token) * x.stride_s);
    const T* values = reinterpret_cast<const T*>(&packed);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sum[i] += to_float(values[i]);
  }
#pragma unroll
  for (int i = 0; i < kColumns; ++i) sums[row][column + i] = sum[i];
  __syncthreads();
  for (int d = threadIdx.x; d < kD; d += kThreads) {
    float total = 0.f;
#pragma unroll
    for (int r = 0; r < kRows; ++r) total += sums[r][d];
    set(mean[((b * tiles + tile) * heads + head) * kD + d], count > 0 ? total / static_cast<float>(count) : 0.f);
  }
}

template <class T, int kD>
void launch(void* mean, const StridedTensor& x, std::int64_t B, std::int64_t S, std::int64_t Hk, const std::int32_t* key_lengths,
            const std::int32_t* tile_keys, cudaStream_t stream) {
  const std::int64_t tiles = (S + kTileK - 1) / kTileK;
  if (B * tiles * Hk == 0) return;
  mean_of_tile<T, kD><<<static_cast<unsigned>(B * tiles * Hk), kThreads, 0, stream>>>(
      static_cast<T*>(mean), x, static_cast<int>(tiles), static_cast<int>(Hk), static_cast<int>(S), key_lengths, tile_keys);
  check(cudaGetLastError(), "attend", "means of keys");
}

}  // namespace

void key_means(void* mean, const StridedTensor& x, Operand operand, std::int64_t B, std::int64_t S, std::int64_t Hk, std::int64_t D,
               const std::int32_t* key_lengths, const std::int32_t* tile_keys, CUstream_st* stream) {
  const auto run = operand == Operand::bf16 ? (D == 64 ? launch<__nv_bfloat16, 64> : launch<__nv_bfloat16, 128>)
                                            : (D == 64 ? launch<__half, 64> : launch<__half, 128>);
  run(mean, x, B, S, Hk, key_lengths, tile_keys, stream);
}

}  // namespace winnow::cuda
