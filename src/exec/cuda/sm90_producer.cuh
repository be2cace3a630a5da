// The producer warps of sm90_attend.cuh: one takes rows and copies Q in, one reads their lists and copies K and V in, one copies O out,
// one weighs means.
#pragma once

#include "exec/cuda/attend_cuda.h"
#include "exec/cuda/sm90_config.cuh"

namespace winnow::sm90 {

// A row's list, 32 entries in the lanes of the warp and the next 32 on their way.
struct ListReader {
  const std::int32_t* list;  // null: identity
  int n, base, mine, next;

  __device__ __forceinline__ int fetch(int i) const { return list == nullptr || i >= n ? i : __ldg(list + i); }
  __device__ __forceinline__ void open(const std::int32_t* tiles, int count) {
    list = tiles;
    n = count;
    base = 0;
    mine = fetch(threadIdx.x % 32);
    next = fetch(32 + threadIdx.x % 32);
  }
  // Entry i, the tile and what is missing of it; calls come with i ascending.
  __device__ __forceinline__ int at(int i) {
    if (i >= base + 32) {
      base += 32;
      mine = next;
      next = fetch(base + 32 + threadIdx.x % 32);
    }
    return __shfl_sync(0xffffffffu, mine, i - base);
  }
};

template <class C>
__device__ __forceinline__ int tile_of(int entry) {
  return C::kLayout ? entry & cuda::kTileMask : entry;
}
// Of two list entries: keys of the first tile that take part, and of the second << 16.
inline constexpr std::uint32_t kAllValid = kTileK << 16 | kTileK;
template <class C>
__device__ __forceinline__ std::uint32_t valid_keys(int entry0, int entry1, int keys) {
  const auto valid = [&](int entry) {
    const int tile = tile_of<C>(entry);
    const int most = C::kLayout ? kTileK - (entry >> cuda::kMissingShift) : kTileK;
    return static_cast<std::uint32_t>(max(0, min(keys - tile * kTileK, most)));
  };
  return valid(entry0) | valid(entry1) << 16;
}

template <class C>
__device__ __forceinline__ void load_operand(std::uint8_t* to, const CUtensorMap* map, std::uint64_t* full, int row0, int row1, int head,
                                             int b, std::uint64_t policy) {
#pragma unroll
  for (int slab = 0; slab < C::kSlabs; ++slab) {
    std::uint8_t* at = to + slab * C::kSlabBytes;
    tma_load(at, map, full, slab * kBoxCols, row0, head, b, policy);
    tma_load(at + C::kBoxBytes, map, full, slab * kBoxCols, row1, head, b, policy);
  }
}

// K or V of a step. In pairs, this CTA's half goes to both.
template <class C>
__device__ __forceinline__ void load_keys(std::uint8_t* to, const CUtensorMap* map, std::uint64_t* full, int row0, int row1, int head,
                                          int b, int rank, std::uint64_t policy) {
  if constexpr (!C::kPairs) {
    load_operand<C>(to, map, full, row0, row1, head, b, policy);
  } else {
#pragma unroll
    for (int slab = 0; slab < C::kSlabs; ++slab) {
      tma_load_multicast(to + slab * C::kSlabBytes + rank * C::kBoxBytes, map, full, slab * kBoxCols, rank == 0 ? row0 : row1, head, b, 3,
                         policy);
    }
  }
}

// Takes rows, tells the other warps about them, and copies their Q in. One lane does it.
template <class C>
__device__ __forceinline__ void hand_out(const KernelArgs& args, Shared<C>& shared) {
  if (!elect_one()) return;
  Cursor<C::kQueryBuffers> buffer;
  const int rank = C::kPairs ? cluster_rank() : 0;
  // A pair's second query tile may lie past the end: it is computed and not stored.
  const int items_per_head = C::kPairs ? (args.Gq + 1) / 2 : args.Gq;
  const int items = C::kPairs ? items_per_head * args.H * args.B : args.item_count != nullptr ? *args.item_count : args.rows;
  int item = blockIdx.x / C::kCtas;
  while (true) {
    // The next item is asked for while this one is worked on. Pairs are alike and go round in a fixed order.
    const int ahead = C::kPairs ? item + gridDim.x / C::kCtas : gridDim.x + atomicAdd(args.next_item, 1);
    Item it;
    it.row = item >= items ? -1 : !C::kPairs && args.order != nullptr ? __ldg(args.order + item) : item;
    it.steps = 0;
    if (it.row >= 0) {
      const int bh = it.row / items_per_head;
      const int query_tile = (it.row - bh * items_per_head) * C::kCtas + rank;
      it.b = bh / args.H;
      it.h = bh - it.b * args.H;
      it.q0 = query_tile * kTileQ;
      if constexpr (C::kPairs) it.row = bh * args.Gq + query_tile;
      it.queries = C::kLayout ? __ldg(args.tile_queries + query_tile) : min(kTileQ, args.Sq - it.q0);
      it.keys = args.key_lengths != nullptr ? __ldg(args.key_lengths + it.b) : args.Sk;
      const int key_tiles = (it.keys + kTileK - 1) / kTileK;
      int n = key_tiles;
      it.tiles = nullptr;
      if (args.offsets != nullptr) {
        const int list_row = C::kLayout ? it.row % args.list_period : it.row;
        const std::int64_t begin = __ldg(args.offsets + list_row);
        n = static_cast<int>(__ldg(args.offsets + list_row + 1) - begin);
        it.tiles = args.tiles + begin;
      }
      // The first step takes the last entry, or the last two if n is even.
      const int tail = n == 0 ? 0 : 2 - n % 2;
      it.first[0] = 0;
      it.first[1] = args.Gk;  // outside the tensor, read as zeros
      if (tail > 0) {
        it.first[0] = it.tiles != nullptr ? __ldg(it.tiles + n - tail) : n - tail;
        if (tail == 2) it.first[1] = it.tiles != nullptr ? __ldg(it.tiles + n - 1) : n - 1;
        it.valid = valid_keys<C>(it.first[0], it.first[1], it.keys);
      }
      it.listed = n - tail;
      it.list_steps = (n + 1) / 2;
      it.steps = it.list_steps + (C::kMeans && !(C::kLayout && args.mean_bits == nullptr) ? (key_tiles + kStepKeys - 1) / kStepKeys : 0);
    }
    mbarrier_wait_idle(&shared.query_empty[buffer.index], buffer.parity ^ 1);
    mbarrier_wait_idle(&shared.item_empty[buffer.index], buffer.parity ^ 1);
    std::uint64_t* full = &shared.query_full[buffer.index];
    shared.item[buffer.index] = it;
    if (it.row < 0) {
      mbarrier_arrive(full);
      return;
    }
    mbarrier_arrive_expect(full, C::kOperandBytes);
    load_operand<C>(shared.query[buffer.index], &args.q, full, it.q0, it.q0 + kBoxRows, it.h, it.b, kEvictFirst);
    buffer.advance();
    item = ahead;
  }
}

// Copies K and V in.
template <class C>
__device__ __forceinline__ void load_tiles(const KernelArgs& args, Shared<C>& shared) {
  const bool leader = elect_one();
  Cursor<C::kSlots> slot;
  Cursor<C::kQueryBuffers> buffer;
  const int rank = C::kPairs ? cluster_rank() : 0;
  while (true) {
    mbarrier_wait(&shared.query_full[buffer.index], buffer.parity);
    const Item& told = shared.item[buffer.index];  // read from there: a producer has few registers
    if (told.row < 0) return;

    ListReader reader;
    reader.open(told.tiles, told.listed);
    const int head = told.h / (args.H / args.Hk);
    int v0 = 0, v1 = 0;  // rows of the step before
    for (int step = 0; step <= told.steps; ++step) {
      int k0 = 0, k1 = 0;
      if (step < told.steps) {
        if (step >= told.list_steps) {
          k0 = (step - told.list_steps) * kStepKeys;
          k1 = k0 + kBoxRows;
        } else if (step == 0) {
          k0 = told.first[0];
          k1 = told.first[1];
        } else {
          k0 = reader.at(2 * step - 2);
          k1 = reader.at(2 * step - 1);
        }
        const std::uint32_t valid = C::kLayout ? valid_keys<C>(k0, k1, told.keys) : 0;
        if (step < told.list_steps) {
          k0 = tile_of<C>(k0) * kTileK;
          k1 = tile_of<C>(k1) * kTileK;
        }
        mbarrier_wait(&shared.empty[slot.index], slot.parity ^ 1);
        if (leader) {
          const bool means = C::kMeans && step >= told.list_steps;
          if constexpr (C::kLayout) shared.valid[slot.index] = valid;
          mbarrier_arrive_expect(&shared.full[slot.index], C::kOperandBytes);
          load_keys<C>(shared.ring[slot.index], means ? &args.k_mean : &args.k, &shared.full[slot.index], k0, k1, head, told.b, rank,
                       kEvictLast);
        }
        slot.advance();
      }
      if (step > 0) {
        mbarrier_wait(&shared.empty[slot.index], slot.parity ^ 1);
        if (leader) {
          mbarrier_arrive_expect(&shared.full[slot.index], C::kOperandBytes);
          const CUtensorMap* map = C::kMeans && step > told.list_steps ? &args.v_mean : &args.v;
          load_keys<C>(shared.ring[slot.index], map, &shared.full[slot.index], v0, v1, head, told.b, rank, kEvictLast);
        }
        slot.advance();
      }
      v0 = k0;
      v1 = k1;
    }
    __syncwarp();
    if (leader) mbarrier_arrive(&shared.item_empty[buffer.index]);
    buffer.advance();
  }
}

// Copies outputs from the query buffers where consumers leave them.
template <class C>
__device__ __forceinline__ void store_outputs(const KernelArgs& args, Shared<C>& shared) {
  if (!elect_one()) return;
  Cursor<C::kQueryBuffers> buffer;
  while (true) {
    mbarrier_wait_idle(&shared.query_full[buffer.index], buffer.parity);
    const Item& told = shared.item[buffer.index];
    if (told.row < 0) break;
    mbarrier_wait_idle(&shared.out_full[buffer.index], buffer.parity);
#pragma unroll
    for (int box = 0; box < 2 * C::kSlabs; ++box) {
      const int slab = box / 2, half = box % 2;
      tma_store(&args.out, shared.query[buffer.index] + slab * C::kSlabBytes + half * C::kBoxBytes, slab * kBoxCols,
                told.q0 + half * kBoxRows, told.h, told.b);
    }
    tma_store_commit();
    mbarrier_arrive(&shared.item_empty[buffer.index]);
    tma_store_wait_read();
    mbarrier_arrive(&shared.query_empty[buffer.index]);
    buffer.advance();
  }
  tma_store_wait();
}

// The weights of virtual keys, as an operand of a bf16 k16 product that adds them to the scores. A key that takes no part weighs -inf;
// one that stands for fewer than kTileK tokens, log2 of its share of them. Row n of the operand is key n's: three parts of half its
// weight in elements 0 to 2, or 4 to 6 for the next step's, which the product reads twice, as elements 8 to 15 too. Parts are finite, so
// that those of the other step can be multiplied by 0; half of -inf is the least number, twice which is -inf.
template <class C>
__device__ __forceinline__ void weigh(const KernelArgs& args, Shared<C>& shared) {
  constexpr std::uint32_t kLeast = 0xff7f;
  const int lane = threadIdx.x % 32;
  Cursor<C::kQueryBuffers> buffer;
  Cursor<2> weights;
  const auto parts_of = [](float x) {  // from the largest on
    const float high = round_to_bf16(x), middle = round_to_bf16(x - high);
    return uint2{pack<__nv_bfloat16>(high, middle), pack<__nv_bfloat16>(x - high - middle, 0.f)};
  };
  for (int i = lane; i < kStepKeys; i += 32) shared.weights[i][1] = {};  // finite before the first odd step's are there
  while (true) {
    mbarrier_wait(&shared.query_full[buffer.index], buffer.parity);
    const Item& told = shared.item[buffer.index];
    const int row = told.row, steps = row < 0 ? 0 : told.steps - told.list_steps, keys = told.keys;
    __syncwarp();
    if (lane == 0) mbarrier_arrive(&shared.item_empty[buffer.index]);
    if (row < 0) return;
    buffer.advance();
    const auto* bits = reinterpret_cast<const uint4*>(args.mean_bits + static_cast<std::int64_t>(row) * args.mean_words);
    const int last = keys % kTileK == 0 ? -1 : keys / kTileK;  // mean of fewer tokens
    const float last_log2 = last < 0 ? 0.f : lg2(static_cast<float>(keys % kTileK)) - kMeanLog2;
    uint4 next = steps > 0 ? __ldg(bits) : uint4{};
    for (int step = 0; step < steps; ++step) {
      const std::uint32_t words[4] = {next.x, next.y, next.z, next.w};
      if (step + 1 < steps) next = __ldg(bits + step + 1);
      uint2 parts[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int mean = step * kStepKeys + 32 * i + lane;
        float log2_share = mean == last ? last_log2 : 0.f;
        if constexpr (C::kLayout) log2_share += __ldg(args.mean_log2 + mean);
        parts[i] = (words[i] >> lane & 1) != 0 ? parts_of(0.5f * log2_share * args.raw_per_log2) : uint2{kLeast, 0};
      }
      mbarrier_wait(&shared.weights_empty[weights.index], weights.parity ^ 1);
#pragma unroll
      for (int i = 0; i < 4; ++i) shared.weights[32 * i + lane][weights.index] = parts[i];
      fence_async_proxy();
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&shared.weights_full[weights.index]);
      weights.advance();
    }
  }
}

}  // namespace winnow::sm90
