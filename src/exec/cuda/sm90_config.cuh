// What the producer and the consumers of sm90_attend.cuh share: the kernel's variants, its shared memory, its numbers.
#pragma once

#include "exec/cuda/kernel_args.h"
#include "exec/cuda/ptx.cuh"

namespace winnow::sm90 {

// kInPairs: for plans whose rows share one list. The two CTAs of a cluster take neighbouring query tiles, and each loads one of
// the two key tiles of a step for both: half the reads of the L2 cache.
template <class Element, int kHeadDim, bool kSkipTest, Keys kAttended, Maximum kMaximum, bool kInPairs>
struct AttendConfig {
  using T = Element;
  static constexpr int kD = kHeadDim;
  static constexpr bool kSkip = kSkipTest;
  static constexpr bool kMeans = kAttended != Keys::listed;
  static constexpr bool kLayout = kAttended == Keys::layout;
  static constexpr bool kSafe = kMaximum == Maximum::before;
  static constexpr bool kPairs = kInPairs;
  static constexpr int kCtas = kPairs ? 2 : 1;  // of a cluster
  static constexpr bool kTop = kMaximum != Maximum::never;
  static_assert(kTop || !kSkip, "the skip test compares with the maximum");
  // Spares the tensor cores' reads of Q from shared memory: 4 % of a call's energy, and energy is what limits the clock. With
  // everything else switched on there is no room for it.
  static constexpr bool kQueryInRegisters = !(kSkip && kMeans);

  static constexpr int kSlabs = kD / kBoxCols;               // 64-column slabs of an operand
  static constexpr int kBoxBytes = kBoxRows * kBoxCols * 2;  // 8 KB
  static constexpr int kSlabBytes = 2 * kBoxBytes;           // 128 rows of a slab
  static constexpr int kOperandBytes = kSlabs * kSlabBytes;  // one 128-row operand: 32 KB at D = 128
  // Two, so that a row's Q arrives while the row before is worked on and O leaves while the next one is: one was 9 % slower.
  static constexpr int kQueryBuffers = 2;
  static constexpr int kSlots = kD == 128 ? 5 : 10;  // of K and V: what 227 KB allow at D = 128
};

// What the producer tells the consumers about a row.
struct Item {
  int row;              // < 0: no more work
  int b, h, q0;         // q0: first query
  int list_steps;       // steps over listed tiles
  int steps;            // and over means
  int queries;          // that exist
  int keys;             // valid keys of the batch entry
  std::uint32_t valid;  // keys of the first step that take part, see valid_keys()
  // Of the row's list without the entries of the first step; null: 0, 1, 2 ...
  const std::int32_t* tiles;
  int listed;
  int first[2];  // entries of the first step
};

// Weights of virtual keys, see weigh(): of a key and of all even or odd steps.
template <bool kMeans>
struct Weights {
  alignas(1024) uint2 weights[kStepKeys][2];
};
template <>
struct Weights<false> {};

// The weights come first because compute-sanitizer thinks that the product with them reads twice as much.
template <class C>
struct Shared : Weights<C::kMeans> {
  alignas(1024) std::uint8_t query[C::kQueryBuffers][C::kOperandBytes];  // Q, later O
  alignas(1024) std::uint8_t ring[C::kSlots][C::kOperandBytes];
  std::uint32_t valid[C::kLayout ? C::kSlots : 1];  // of the keys in a slot, see valid_keys()
  alignas(8) std::uint64_t full[C::kSlots], empty[C::kSlots];
  std::uint64_t query_full[C::kQueryBuffers], query_empty[C::kQueryBuffers];
  std::uint64_t item_empty[C::kQueryBuffers], out_full[C::kQueryBuffers];
  std::uint64_t weights_full[2], weights_empty[2];
  Item item[C::kQueryBuffers];
  int veto[2];  // skip test, of each warpgroup: the last vote that a warp was against
};

inline constexpr int kProducerThreads = 128;  // a warp for each of its tasks
inline constexpr int kConsumerThreads = 256;
inline constexpr int kThreads = kProducerThreads + kConsumerThreads;
inline constexpr int kConsumerWarps = kConsumerThreads / 32;
// 65536 registers: 128 * 40 + 256 * 232 = 64512.
inline constexpr int kProducerRegisters = 40;
inline constexpr int kConsumerRegisters = 232;
// Named barriers; 0 is __syncthreads. The second of each pair is the second warpgroup's.
inline constexpr int kBarTurn = 1;
inline constexpr int kBarGroup = 3;

// Position in a circular buffer and the parity of its pass.
template <int kSize>
struct Cursor {
  int index = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++index == kSize) {
      index = 0;
      parity ^= 1;
    }
  }
};

}  // namespace winnow::sm90
