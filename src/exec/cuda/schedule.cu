// Small kernels that turn a plan's lists into what the attention kernels walk: the order of rows and the bits of virtual keys.
#include <algorithm>
#include <string>

#include <cuda_runtime.h>

#include "exec/cuda/attend_cuda.h"
#include "winnow/error.h"

namespace winnow::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBuckets = 256;

// One CTA sorts one group by a counting sort on the number of steps, longest first. Rows of one bucket come in any order:
// a row's result does not depend on when it is computed.
__global__ void __launch_bounds__(kThreads) order_group(const std::int64_t* offsets, std::int32_t* order, int rows, int rows_per_group) {
  __shared__ int begin[kBuckets];
  __shared__ int longest;
  const int first = blockIdx.x * rows_per_group;
  const int last = min(rows, first + rows_per_group);
  if (threadIdx.x == 0) longest = 1;
  begin[threadIdx.x] = 0;
  __syncthreads();
  for (int r = first + threadIdx.x; r < last; r += kThreads) atomicMax(&longest, static_cast<int>(offsets[r + 1] - offsets[r]));
  __syncthreads();
  const auto bucket = [&](int r) {
    const long long n = offsets[r + 1] - offsets[r];
    return kBuckets - 1 - static_cast<int>(n * (kBuckets - 1) / longest);
  };
  for (int r = first + threadIdx.x; r < last; r += kThreads) atomicAdd(&begin[bucket(r)], 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    int sum = first;
    for (int i = 0; i < kBuckets; ++i) {
      const int count = begin[i];
      begin[i] = sum;
      sum += count;
    }
  }
  __syncthreads();
  for (int r = first + threadIdx.x; r < last; r += kThreads) order[atomicAdd(&begin[bucket(r)], 1)] = r;
}

struct Lists {
  const std::int64_t* offsets[3];
  const std::int32_t* tiles[3];
};

// One CTA per row. Shared memory: the row's words.
__global__ void __launch_bounds__(kThreads) mark_row(std::uint32_t* bits, int words, int rows_per_batch, int Sk,
                                                     const std::int32_t* key_lengths, Lists lists, const std::int32_t* candidates, int Gq) {
  extern __shared__ std::uint32_t mine[];
  const int row = blockIdx.x;
  const int keys = key_lengths != nullptr ? key_lengths[row / rows_per_batch] : Sk;
  const int begin = candidates != nullptr ? candidates[2 * (row % Gq)] : 0;
  const int end = candidates != nullptr ? candidates[2 * (row % Gq) + 1] : (keys + kTileK - 1) / kTileK;
  const auto below = [](int tile, int w) {  // bits of word w that stand for tiles before `tile`
    const int bits = tile - 32 * w;
    return bits >= 32 ? 0xffffffffu : bits <= 0 ? 0u : (1u << bits) - 1;
  };
  for (int w = threadIdx.x; w < words; w += kThreads) mine[w] = below(end, w) & ~below(begin, w);
  __syncthreads();
  for (int l = 0; l < 3; ++l) {
    if (lists.offsets[l] == nullptr) continue;
    const std::int64_t last = lists.offsets[l][row + 1];
    for (std::int64_t i = lists.offsets[l][row] + threadIdx.x; i < last; i += kThreads) {
      const int tile = lists.tiles[l][i] & kTileMask;
      atomicAnd(&mine[tile / 32], ~(1u << tile % 32));
    }
  }
  __syncthreads();
  for (int w = threadIdx.x; w < words; w += kThreads) bits[static_cast<std::int64_t>(row) * words + w] = mine[w];
}

void check(cudaError_t e, const char* what) {
  if (e != cudaSuccess) throw Error("attend", std::string(what) + ": " + cudaGetErrorString(e));
}

}  // namespace

std::int64_t mean_words(std::int64_t Sk) { return ((Sk + kTileK - 1) / kTileK + 127) / 128 * 4; }

void order_rows(const std::int64_t* offsets, std::int32_t* order, std::int64_t rows, std::int64_t rows_per_group, CUstream_st* stream) {
  if (rows == 0) return;
  const auto groups = static_cast<unsigned>((rows + rows_per_group - 1) / rows_per_group);
  order_group<<<groups, kThreads, 0, stream>>>(offsets, order, static_cast<int>(rows), static_cast<int>(rows_per_group));
  check(cudaGetLastError(), "order_rows");
}

void mark_means(std::uint32_t* mean_bits, std::int64_t rows, std::int64_t rows_per_batch, std::int64_t Sk, const std::int32_t* key_lengths,
                const std::int64_t* refine_offsets, const std::int32_t* refine_tiles, const std::int64_t* skim_offsets,
                const std::int32_t* skim_tiles, const std::int64_t* excluded_offsets, const std::int32_t* excluded_tiles,
                const std::int32_t* candidates, std::int64_t Gq, CUstream_st* stream) {
  if (rows == 0) return;
  const Lists lists{{refine_offsets, skim_offsets, excluded_offsets}, {refine_tiles, skim_tiles, excluded_tiles}};
  const int words = static_cast<int>(mean_words(Sk));
  mark_row<<<static_cast<unsigned>(rows), kThreads, words * sizeof(std::uint32_t), stream>>>(
      mean_bits, words, static_cast<int>(rows_per_batch), static_cast<int>(Sk), key_lengths, lists, candidates, static_cast<int>(Gq));
  check(cudaGetLastError(), "mark_means");
}

}  // namespace winnow::cuda
