// Tokens of a layout into tiles that are full, and back.
#include <algorithm>

#include <cuda_runtime.h>

#include "exec/cuda/attend_cuda.h"
#include "exec/cuda/runtime.h"

namespace winnow::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTokens = 4;    // of a CTA: several independent reads per thread hide their latency
constexpr int kElements = 8;  // of 16 bits, in the 16 bytes that a thread moves at a time

// 16-byte pieces of all heads of a token.
struct Pieces {
  int heads, per_head;
  __device__ int count() const { return heads * per_head; }
};

__device__ uint4* piece(const StridedTensor& x, std::int64_t b, std::int64_t token, int i, const Pieces& pieces) {
  const int h = i / pieces.per_head;
  auto* at = static_cast<std::uint16_t*>(x.data) + b * x.stride_b + token * x.stride_s + h * x.stride_h;
  return reinterpret_cast<uint4*>(at) + (i - h * pieces.per_head);
}

// f(row, piece) for the pieces of the CTA's kTokens rows of `rows`.
template <class F>
__device__ __forceinline__ void each_piece(int rows, const Pieces& pieces, F f) {
  const int first = blockIdx.x * kTokens;
  const int count = pieces.count();
#pragma unroll 4
  for (int i = threadIdx.x; i < kTokens * count; i += kThreads) {
    const int row = first + i / count;
    if (row < rows) f(row, i % count);
  }
}

__global__ void __launch_bounds__(kThreads) gather(uint4* to, StridedTensor x, const std::int32_t* tokens, int rows, Pieces pieces) {
  const std::int64_t b = blockIdx.y;
  each_piece(rows, pieces, [&](int row, int i) {
    const int token = __ldg(tokens + row);
    to[(b * rows + row) * pieces.count() + i] = token < 0 ? uint4{} : __ldg(piece(x, b, token, i, pieces));
  });
}

__global__ void __launch_bounds__(kThreads) scatter(StridedTensor out, const uint4* from, const std::int32_t* query_rows, StridedStats lse,
                                                    StridedStats inv_l, int tokens, int rows, Pieces pieces) {
  const std::int64_t b = blockIdx.y;
  each_piece(tokens, pieces, [&](int token, int i) {
    const int row = __ldg(query_rows + token);
    *piece(out, b, token, i, pieces) = row < 0 ? uint4{} : __ldg(from + (b * rows + row) * pieces.count() + i);
    if (row >= 0 || i % pieces.per_head != 0) return;  // the attention kernel has written its statistics
    const int h = i / pieces.per_head;
    if (lse.data != nullptr) lse.data[b * lse.stride_b + h * lse.stride_h + token * lse.stride_s] = -__builtin_huge_valf();
    if (inv_l.data != nullptr) inv_l.data[b * inv_l.stride_b + h * inv_l.stride_h + token * inv_l.stride_s] = 0.f;
  });
}

dim3 grid_of(std::int64_t B, std::int64_t rows) {
  if (B > 65535) throw Error("attend", "q: expected a batch of at most 65535 under a layout, got " + std::to_string(B));
  return {static_cast<unsigned>((rows + kTokens - 1) / kTokens), static_cast<unsigned>(B)};
}
Pieces pieces_of(std::int64_t H, std::int64_t D) { return {static_cast<int>(H), static_cast<int>(D / kElements)}; }

}  // namespace

void gather_tokens(void* to, const StridedTensor& x, const std::int32_t* tokens, std::int64_t B, std::int64_t rows, std::int64_t H,
                   std::int64_t D, CUstream_st* stream) {
  if (B * rows * H == 0) return;
  gather<<<grid_of(B, rows), kThreads, 0, stream>>>(static_cast<uint4*>(to), x, tokens, static_cast<int>(rows), pieces_of(H, D));
  check(cudaGetLastError(), "attend", "tokens into tiles");
}

void scatter_tokens(const StridedTensor& out, const void* from, const std::int32_t* query_rows, const StridedStats& lse,
                    const StridedStats& inv_l, std::int64_t B, std::int64_t tokens, std::int64_t rows, std::int64_t H, std::int64_t D,
                    CUstream_st* stream) {
  if (B * tokens * H == 0) return;
  scatter<<<grid_of(B, tokens), kThreads, 0, stream>>>(out, static_cast<const uint4*>(from), query_rows, lse, inv_l,
                                                       static_cast<int>(tokens), static_cast<int>(rows), pieces_of(H, D));
  check(cudaGetLastError(), "attend", "tokens out of tiles");
}

}  // namespace winnow::cuda
