// Tokens of a layout into tiles that are full, and back.
#include <algorithm>

#include <cuda_runtime.h>

#include "exec/cuda/attend_cuda.h"
#include "exec/cuda/runtime.h"

namespace winnow::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kElements = 8;  // of 16 bits, in the 16 bytes that a thread moves at a time

// Tokens of one batch entry are far apart only by their strides: 16-byte pieces of all heads of a token.
struct Pieces {
  int heads, per_head;
  __device__ int count() const { return heads * per_head; }
};

__device__ uint4* piece(const StridedTensor& x, std::int64_t b, std::int64_t token, int i, const Pieces& pieces) {
  const int h = i / pieces.per_head;
  auto* at = static_cast<std::uint16_t*>(x.data) + b * x.stride_b + token * x.stride_s + h * x.stride_h;
  return reinterpret_cast<uint4*>(at) + (i - h * pieces.per_head);
}

// One CTA per row of `to`.
__global__ void __launch_bounds__(kThreads) gather(uint4* to, StridedTensor x, const std::int32_t* tokens, int rows, Pieces pieces) {
  const std::int64_t b = blockIdx.x / rows;
  const int token = tokens[blockIdx.x % rows];
  to += std::int64_t{blockIdx.x} * pieces.count();
  for (int i = threadIdx.x; i < pieces.count(); i += kThreads) {
    to[i] = token < 0 ? uint4{} : *piece(x, b, token, i, pieces);
  }
}

// One CTA per token of `out`.
__global__ void __launch_bounds__(kThreads) scatter(StridedTensor out, const uint4* from, const std::int32_t* query_rows, StridedStats lse,
                                                    StridedStats inv_l, int tokens, int rows, Pieces pieces) {
  const std::int64_t b = blockIdx.x / tokens;
  const int token = static_cast<int>(blockIdx.x % tokens);
  const int row = query_rows[token];
  from += (b * rows + row) * pieces.count();
  for (int i = threadIdx.x; i < pieces.count(); i += kThreads) *piece(out, b, token, i, pieces) = row < 0 ? uint4{} : from[i];
  if (row >= 0) return;  // the attention kernel has written its statistics
  for (int h = threadIdx.x; h < pieces.heads; h += kThreads) {
    if (lse.data != nullptr) lse.data[b * lse.stride_b + h * lse.stride_h + token * lse.stride_s] = -__builtin_huge_valf();
    if (inv_l.data != nullptr) inv_l.data[b * inv_l.stride_b + h * inv_l.stride_h + token * inv_l.stride_s] = 0.f;
  }
}

Pieces pieces_of(std::int64_t H, std::int64_t D) { return {static_cast<int>(H), static_cast<int>(D / kElements)}; }

}  // namespace

void gather_tokens(void* to, const StridedTensor& x, const std::int32_t* tokens, std::int64_t B, std::int64_t rows, std::int64_t H,
                   std::int64_t D, CUstream_st* stream) {
  if (B * rows * H == 0) return;
  gather<<<static_cast<unsigned>(B * rows), kThreads, 0, stream>>>(static_cast<uint4*>(to), x, tokens, static_cast<int>(rows),
                                                                   pieces_of(H, D));
  check(cudaGetLastError(), "attend", "tokens into tiles");
}

void scatter_tokens(const StridedTensor& out, const void* from, const std::int32_t* query_rows, const StridedStats& lse,
                    const StridedStats& inv_l, std::int64_t B, std::int64_t tokens, std::int64_t rows, std::int64_t H, std::int64_t D,
                    CUstream_st* stream) {
  if (B * tokens * H == 0) return;
  scatter<<<static_cast<unsigned>(B * tokens), kThreads, 0, stream>>>(out, static_cast<const uint4*>(from), query_rows, lse, inv_l,
                                                                      static_cast<int>(tokens), static_cast<int>(rows), pieces_of(H, D));
  check(cudaGetLastError(), "attend", "tokens out of tiles");
}

}  // namespace winnow::cuda
