// Attention over key-tile lists on any GPU from sm_80 on: mma.sync and cp.async, which all of them have. The executor for GPUs
// without a kernel of their own; on sm_90a it is what the other one is compared with.
//
// One CTA per query tile, or per half of one: warps of 16 query rows, which share 64-key tiles of K and V in shared memory, two
// stages deep.
// A warp does not need the others but for the copies: each one votes on its own rows in the skip test. Tiles come in ascending
// order, virtual keys last. A row is done by one warp in a fixed order: results do not depend on scheduling.
#pragma once

#include <cstdint>

#include "exec/cuda/device_math.cuh"
#include "exec/cuda/sm80_launch.h"

namespace winnow::sm80 {

inline constexpr int kWarpRows = 16;
// D = 128: 8 warps fill the registers of an SM. D = 64: 12 warps as three CTAs; with two CTAs of 8, 128 registers were too few.
template <int kD>
struct Shape {
  static constexpr int kWarps = kD == 128 ? 8 : 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRows = kWarps * kWarpRows;     // queries of a CTA
  static constexpr int kSplit = cuda::kTileQ / kRows;  // CTAs of a plan row
  static constexpr int kCtasPerSm = kD == 128 ? 1 : 3;
};
inline constexpr int kTileK = cuda::kTileK;
inline constexpr int kStages = 2;
using cuda::ex2, cuda::kInf, cuda::kMeanLog2, cuda::max_nan, cuda::pack, cuda::quad_sum, cuda::smem_address;

// ---- instructions ---------------------------------------------------------------------------------------------------

// Copies 16 bytes to shared memory, or writes zeros.
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from, bool real) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void copy_wait_all() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

// As cuda::ldmatrix_x4, each matrix transposed.
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// d += a b: 16 x 8 x 16. With g = lane / 4, t = lane % 4, d holds rows g and g + 8, columns 2t and 2t + 1.
template <class T>
__device__ __forceinline__ void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);
template <>
__device__ __forceinline__ void multiply<__nv_bfloat16>(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply<__half>(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A NaN stays, so that a tile with one is never skipped.
__device__ __forceinline__ float quad_max(float x) {
  x = max_nan(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return max_nan(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
// ---- tiles ----------------------------------------------------------------------------------------------------------

// A [B,S,H,D] tensor's rows of one head.
template <class T>
struct HeadRows {
  const T* data;
  std::int64_t stride;
  int count;  // rows after it are read as zeros
};

// kRows rows in shared memory, their 16-byte chunks xored with the row number: reads of 8 rows meet 8 different banks.
template <int kD>
__device__ __forceinline__ std::uint32_t chunk_offset(int row, int chunk) {
  return static_cast<std::uint32_t>(row * kD * 2 + ((chunk ^ row % 8) * 16));
}
template <int kD, int kRows, class T>
__device__ __forceinline__ void copy_rows(std::uint32_t to, const HeadRows<T>& from, int first) {
  constexpr int kChunks = kD / 8;
#pragma unroll
  for (int i = 0; i < kRows * kChunks / Shape<kD>::kThreads; ++i) {
    const int index = i * Shape<kD>::kThreads + static_cast<int>(threadIdx.x);
    const int row = index / kChunks, chunk = index % kChunks;
    const bool real = first + row < from.count;
    copy_async(to + chunk_offset<kD>(row, chunk), from.data + (real ? (first + row) * from.stride + chunk * 8 : 0), real);
  }
}

struct Step {
  int code = -1;    // tile, or kMean + group; < 0: no more
  int missing = 0;  // keys of the tile that do not exist
  static constexpr int kMean = 1 << 30;
  __device__ __forceinline__ bool some() const { return code >= 0; }
  __device__ __forceinline__ bool mean() const { return code >= kMean; }
  __device__ __forceinline__ int tile() const { return code % kMean; }
};

// A plan row's tiles, then the groups of virtual keys that it needs.
struct Walker {
  const KernelArgs& args;
  const std::int32_t* list;  // null: tiles 0 to n - 1
  int row, n, mean_steps;
  int at = 0;

  __device__ __forceinline__ Walker(const KernelArgs& a, int r, int key_tiles) : args(a), list(nullptr), row(r), n(key_tiles) {
    if (args.offsets != nullptr) {
      const int list_row = row % args.list_period;
      list = args.tiles + args.offsets[list_row];
      n = static_cast<int>(args.offsets[list_row + 1] - args.offsets[list_row]);
    }
    mean_steps = args.mean_bits != nullptr ? (key_tiles + kTileK - 1) / kTileK : 0;
  }
  __device__ __forceinline__ std::uint64_t bits(int step) const {
    const std::uint32_t* words = args.mean_bits + static_cast<std::int64_t>(row) * args.mean_words + 2 * step;
    return __ldg(words) | static_cast<std::uint64_t>(__ldg(words + 1)) << 32;
  }
  __device__ __forceinline__ Step next() {
    if (at < n) {
      const int i = at++;
      const int entry = list == nullptr ? i : __ldg(list + i);
      return {entry & cuda::kTileMask, entry >> cuda::kMissingShift};
    }
    for (; at < n + mean_steps; ++at) {
      if (bits(at - n) != 0) return {Step::kMean + at++ - n};
    }
    return {};
  }
};

// ---- one warp's rows ------------------------------------------------------------------------------------------------

template <class T, int kD>
struct WarpRows {
  static constexpr int kScoreTiles = kTileK / 8;
  static constexpr int kOutputTiles = kD / 8;

  std::uint32_t query;  // address of the warp's rows of Q
  float o[kOutputTiles][4];
  float top[2];  // maximum of the raw scores of rows g and g + 8
  float sum[2];  // this lane's part

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x % 32); }

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (auto& tile : o) {
#pragma unroll
      for (float& x : tile) x = 0.f;
    }
    top[0] = top[1] = -kInf;
    sum[0] = sum[1] = 0.f;
  }

  // s = Q K^T
  __device__ __forceinline__ void scores(float (&s)[kScoreTiles][4], std::uint32_t keys) const {
#pragma unroll
    for (auto& tile : s) tile[0] = tile[1] = tile[2] = tile[3] = 0.f;
#pragma unroll
    for (int step = 0; step < kD / 16; ++step) {
      std::uint32_t q[4];
      cuda::ldmatrix_x4(q, query + chunk_offset<kD>(lane() % 16, 2 * step + lane() / 16));
#pragma unroll
      for (int pair = 0; pair < kScoreTiles / 2; ++pair) {
        std::uint32_t k[4];  // 16 keys x 16 columns
        cuda::ldmatrix_x4(k, keys + chunk_offset<kD>(16 * pair + lane() / 16 * 8 + lane() % 8, 2 * step + lane() / 8 % 2));
        multiply<T>(s[2 * pair], q, k[0], k[1]);
        multiply<T>(s[2 * pair + 1], q, k[2], k[3]);
      }
    }
  }

  // o += P V
  __device__ __forceinline__ void add_output(const float (&p)[kScoreTiles][4], std::uint32_t values) {
#pragma unroll
    for (int step = 0; step < kTileK / 16; ++step) {
      const auto& left = p[2 * step];
      const auto& right = p[2 * step + 1];
      const std::uint32_t a[4] = {pack<T>(left[0], left[1]), pack<T>(left[2], left[3]), pack<T>(right[0], right[1]),
                                  pack<T>(right[2], right[3])};
#pragma unroll
      for (int pair = 0; pair < kOutputTiles / 2; ++pair) {
        std::uint32_t v[4];  // 16 keys x 16 columns
        load_matrices_transposed(v, values + chunk_offset<kD>(16 * step + lane() / 8 % 2 * 8 + lane() % 8, 2 * pair + lane() / 16));
        multiply<T>(o[2 * pair], a, v[0], v[1]);
        multiply<T>(o[2 * pair + 1], a, v[2], v[3]);
      }
    }
  }

  // Whether all rows of the warp may drop a tile with these maxima. `rows`: those that exist. Never the first tile: nothing is
  // below a maximum of -inf.
  __device__ __forceinline__ bool vote_skip(const float (&tile_max)[2], float below, int rows) const {
    bool mine = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) mine = mine && (lane() / 4 + 8 * r >= rows || tile_max[r] - top[r] < below);
    return __all_sync(0xffffffffu, mine);
  }

  // One tile whose masked scores are in s.
  __device__ __forceinline__ void take(float (&s)[kScoreTiles][4], const float (&tile_max)[2], std::uint32_t values, float scale_log2) {
    float reference[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float next = max_nan(top[r], tile_max[r]);
      const float factor = top[r] == -kInf ? 0.f : ex2((top[r] - next) * scale_log2);
      top[r] = next;
      reference[r] = next == -kInf ? 0.f : next * scale_log2;
      sum[r] *= factor;
#pragma unroll
      for (auto& tile : o) {
        tile[2 * r] *= factor;
        tile[2 * r + 1] *= factor;
      }
    }
#pragma unroll
    for (auto& tile : s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        tile[i] = ex2(fmaf(tile[i], scale_log2, -reference[i / 2]));
        sum[i / 2] += tile[i];
      }
    }
    add_output(s, values);
  }
};

template <int kScoreTiles>
__device__ __forceinline__ void tile_maximum(const float (&s)[kScoreTiles][4], float (&maximum)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float m = max_nan(s[0][2 * r], s[0][2 * r + 1]);
#pragma unroll
    for (int i = 1; i < kScoreTiles; ++i) m = max_nan(m, max_nan(s[i][2 * r], s[i][2 * r + 1]));
    maximum[r] = quad_max(m);
  }
}

// f(column, score) for every score of the tile.
template <int kScoreTiles, class F>
__device__ __forceinline__ void each_score(float (&s)[kScoreTiles][4], F f) {
#pragma unroll
  for (int i = 0; i < kScoreTiles; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) f(8 * i + 2 * static_cast<int>(threadIdx.x % 4) + e % 2, s[i][e]);
  }
}

// ---- the kernel -----------------------------------------------------------------------------------------------------

// Where a CTA's queries are.
struct Place {
  int row;  // of the plan
  int b, h;
  int first;  // query
  int count;  // queries that exist, <= 0: none
};
template <int kD>
__device__ __forceinline__ Place place_of(const KernelArgs& args) {
  constexpr int kSplit = Shape<kD>::kSplit;
  const int item = static_cast<int>(blockIdx.x / kSplit);
  Place at;
  at.row = args.order != nullptr ? args.order[item] : item;
  const int bh = at.row / args.Gq;
  at.b = bh / args.H;
  at.h = bh % args.H;
  const int tile = at.row - bh * args.Gq;
  const int offset = static_cast<int>(blockIdx.x % kSplit) * Shape<kD>::kRows;
  at.first = tile * cuda::kTileQ + offset;
  at.count = (args.layout.tile_queries != nullptr ? args.layout.tile_queries[tile] : args.Sq - tile * cuda::kTileQ) - offset;
  return at;
}

template <class T, int kD>
__device__ __forceinline__ void write_rows(const KernelArgs& args, const WarpRows<T, kD>& rows, const Place& at, int warp) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = quad_sum(rows.sum[r]);
    const float factor = sum == 0.f ? 0.f : 1.f / sum;
    const int row = warp * kWarpRows + lane / 4 + 8 * r;
    const std::int64_t q = at.first + row;
    if (q >= args.Sq) continue;
    if (lane % 4 == 0 && row < at.count) {
      const std::int64_t token = args.layout.query_tokens != nullptr ? args.layout.query_tokens[q] : q;
      constexpr float kLn2 = 0.6931471805599453f;
      if (args.lse.data != nullptr) {
        args.lse.data[at.b * args.lse.stride_b + at.h * args.lse.stride_h + token * args.lse.stride_s] =
            sum == 0.f ? -kInf : (rows.top[r] * args.scale_log2 + log2f(sum)) * kLn2;
      }
      if (args.inv_l.data != nullptr)
        args.inv_l.data[at.b * args.inv_l.stride_b + at.h * args.inv_l.stride_h + token * args.inv_l.stride_s] = factor;
    }
    T* out = static_cast<T*>(args.out.data) + at.b * args.out.stride_b + q * args.out.stride_s + at.h * args.out.stride_h + 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < kD / 8; ++i) {
      *reinterpret_cast<std::uint32_t*>(out + 8 * i) = pack<T>(rows.o[i][2 * r] * factor, rows.o[i][2 * r + 1] * factor);
    }
  }
}

template <class T, int kD>
__global__ void __launch_bounds__(Shape<kD>::kThreads, Shape<kD>::kCtasPerSm) sm80_attend(const __grid_constant__ KernelArgs args) {
  constexpr std::uint32_t kQueryBytes = Shape<kD>::kRows * kD * 2;
  constexpr std::uint32_t kTileBytes = kTileK * kD * 2;
  extern __shared__ __align__(128) std::uint8_t memory[];
  const std::uint32_t shared = smem_address(memory);  // Q, [stage] K, V
  const auto keys_at = [&](int stage) { return shared + kQueryBytes + static_cast<std::uint32_t>(stage) * 2 * kTileBytes; };
  const auto values_at = [&](int stage) { return keys_at(stage) + kTileBytes; };

  const Place at = place_of<kD>(args);
  const int hk = at.h / (args.H / args.Hk);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int warp_rows = at.count - warp * kWarpRows;  // that exist; any number
  const int keys = args.key_lengths != nullptr ? args.key_lengths[at.b] : args.Sk;
  const int key_tiles = (keys + kTileK - 1) / kTileK;

  const auto head = [&](const cuda::StridedTensor& x, int index, int count) {
    return HeadRows<T>{static_cast<const T*>(x.data) + at.b * x.stride_b + index * x.stride_h, x.stride_s, count};
  };

  Walker walker(args, at.row, key_tiles);
  WarpRows<T, kD> rows;
  rows.reset();
  rows.query = shared + static_cast<std::uint32_t>(warp * kWarpRows * kD * 2);
  copy_rows<kD, Shape<kD>::kRows>(shared, head(args.q, at.h, args.Sq), at.first);  // waited for with the first tile

  const auto fetch = [&](const Step& step, int stage) {
    if (step.some() && step.mean()) {
      copy_rows<kD, kTileK>(keys_at(stage), head(args.k_mean, hk, key_tiles), step.tile() * kTileK);
      copy_rows<kD, kTileK>(values_at(stage), head(args.v_mean, hk, key_tiles), step.tile() * kTileK);
    } else if (step.some()) {
      copy_rows<kD, kTileK>(keys_at(stage), head(args.k, hk, keys), step.tile() * kTileK);
      copy_rows<kD, kTileK>(values_at(stage), head(args.v, hk, keys), step.tile() * kTileK);
    }
    copy_commit();
  };
  Step step = walker.next();
  fetch(step, 0);
  int skipped = 0;
  for (int stage = 0; step.some(); stage ^= 1) {
    copy_wait_all();
    __syncthreads();  // the tile is there for all, and all are done with the one before, whose place the next one takes
    const Step next = walker.next();
    fetch(next, stage ^ 1);
    float s[kTileK / 8][4], tile_max[2];
    rows.scores(s, keys_at(stage));
    const int first = step.tile() * kTileK;
    if (step.mean()) {
      const std::uint64_t bits = walker.bits(step.tile());
      const int last = key_tiles - 1 - first;  // the column of the virtual key that may stand for fewer tokens
      const float weight = kMeanLog2 / args.scale_log2;
      const float last_weight = log2f(static_cast<float>(keys - (key_tiles - 1) * kTileK)) / args.scale_log2;
      each_score(s, [&](int column, float& x) { x = (bits >> column & 1) != 0 ? x + (column == last ? last_weight : weight) : -kInf; });
      if (args.layout.mean_log2 != nullptr) {
        each_score(s, [&](int column, float& x) { x += __ldg(args.layout.mean_log2 + first + column) / args.scale_log2; });
      }
    } else if (const int valid = min(kTileK - step.missing, keys - first); valid < kTileK) {
      each_score(s, [&](int column, float& x) { x = column < valid ? x : -kInf; });
    }
    tile_maximum(s, tile_max);
    bool skip = false;
    if (args.skip_below > -kInf && !step.mean() && warp_rows > 0) {
      skip = rows.vote_skip(tile_max, args.skip_below, warp_rows);
      skipped += skip;
    }
    if (!skip) rows.take(s, tile_max, values_at(stage), args.scale_log2);
    step = next;
  }

  write_rows(args, rows, at, warp);
  if (args.granules != nullptr && args.skip_below > -kInf && warp_rows > 0 && lane == 0) {
    atomicAdd(args.granules, static_cast<unsigned long long>(walker.n));
    atomicAdd(args.granules + 1, static_cast<unsigned long long>(skipped));
  }
}

}  // namespace winnow::sm80
