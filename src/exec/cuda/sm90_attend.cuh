// Attention over key-tile lists on sm_90a: one persistent CTA per SM, producer warps that copy tiles in and out, two consumer
// warpgroups of 64 query rows that share a 128-row query tile and its list.
//
// A step is 128 keys: two 64-key list entries that four (K) and four (V) copies place as one 128-row operand, so scattered
// tiles cost the tensor cores nothing. The first step of a row takes the odd or ragged end of the list and is the only one
// that masks; means come last. K and V tiles pass through one ring in the order that they are used:
// K0 K1 V0 K2 V1 ... K(n-1) V(n-2) V(n-1). Each step issues its Q K^T before the P V of the step before, so that the
// exponentials of one overlap the products of the other; named barriers make the warpgroups take turns at the tensor cores.
//
// A row is done by one CTA in a fixed order of steps: results do not depend on scheduling.
#pragma once

#include <type_traits>

#include "exec/cuda/sm90_producer.cuh"
#include "exec/cuda/softmax.cuh"
#include "exec/cuda/wgmma.cuh"

namespace winnow::sm90 {

// Sums past this move the reference. Below it probabilities, of which none is larger than its sum, fit the operand type and
// their products the f32 accumulators. In bf16 those of one step's last exponentials may be up to RowSoftmax::kMostSum.
template <class T>
__device__ constexpr float sum_limit() {
  return std::is_same_v<T, __half> ? 0x1p14f : 0x1p64f;
}

template <class C>
struct Consumer {
  using T = typename C::T;
  static constexpr int kScores = kStepKeys / 2;     // of 64 x 128, per thread
  static constexpr int kOutputs = C::kD / 2;        // of 64 x D
  static constexpr int kQuerySteps = C::kD / 16;    // k16 steps of Q K^T
  static constexpr int kKeySteps = kStepKeys / 16;  // k16 steps of P V
  // Exponentials before the wait for the P V of the step before. It ends when some 24 of them are done, and the rest hides the
  // packing of probabilities: 170 to 440 cycles of a warpgroup's 2450 per step otherwise. 24, 32, 40 and 48 differ by 1 %.
  // f16 is packed after its sums are known, as its probabilities can be infinite before; layouts have no registers for it.
  static constexpr bool kNarrow = std::is_same_v<T, __half>;  // a type whose range is not that of f32
  static constexpr int kEarlyScores = kNarrow || C::kLayout ? kScores : kScores * 5 / 8;

  const KernelArgs& args;
  Shared<C>& shared;
  const int group;  // 0 or 1
  Cursor<C::kSlots> slot;
  Cursor<C::kQueryBuffers> buffer;
  Cursor<2> weights;
  bool arrived = false;         // the K of the next step has been seen in its slot
  bool pending = true;          // p holds probabilities whose P V is to come
  int votes = 0, dropped = 0;   // skip test: votes so far, steps of this row that were dropped
  int tested = 0, skipped = 0;  // of all rows

  float s[kScores];
  float o[kOutputs];
  std::uint32_t p[kKeySteps][4];
  std::uint32_t query[C::kQueryInRegisters ? kQuerySteps : 1][4];
  RowSoftmax softmax;
  float limit[2], known[2];  // skip test: see set_limits()
  Signs signs = Signs::mixed;
  int queries_left = 0;  // from this thread's first row on

  __device__ __forceinline__ Consumer(const KernelArgs& a, Shared<C>& sh, int g) : args(a), shared(sh), group(g) {}

  __device__ __forceinline__ static int lane() { return threadIdx.x % 32; }
  __device__ __forceinline__ int warp() const { return threadIdx.x / 32 % 4; }

  // Turns at the tensor cores: wait for mine, hand over to the other warpgroup.
  __device__ __forceinline__ void take_turn() { bar_sync(kBarTurn + group, kConsumerThreads); }
  __device__ __forceinline__ void pass_turn() { bar_arrive(kBarTurn + (group ^ 1), kConsumerThreads); }

  __device__ __forceinline__ void wait_slot() { mbarrier_wait(&shared.full[slot.index], slot.parity); }
  __device__ __forceinline__ void release(int index) {
    if constexpr (C::kPairs) {
      if (lane() < C::kCtas) mbarrier_arrive_cluster(&shared.empty[index], lane());
    } else {
      if (lane() == 0) mbarrier_arrive(&shared.empty[index]);
    }
  }

  // Q fragments, 16 rows per warp: lanes give the rows of four 8x8 matrices (rows 0-7 and 8-15 of columns 0-7, then 8-15).
  __device__ __forceinline__ void load_query() {
    const int row = group * 64 + warp() * 16 + lane() % 16;
    const std::uint32_t base = smem_address(shared.query[buffer.index]) + row * 128;
#pragma unroll
    for (int step = 0; step < kQuerySteps; ++step) {
      const int chunk = step % 4 * 2 + lane() / 16;
      ldmatrix_x4(query[step], base + step / 4 * C::kSlabBytes + ((chunk ^ row % 8) * 16));
    }
  }

  // Of the operand in a slot of the ring, from a byte of it on. What does not depend on the slot is computed ahead, so that few
  // instructions come between a warpgroup's turn and its first product.
  __device__ __forceinline__ std::uint64_t slot_descriptor(int lead, int index, int first_byte = 0) const {
    return matrix_descriptor(smem_address(shared.ring[0]) + first_byte, lead, 1024) +
           static_cast<std::uint32_t>(index) * (C::kOperandBytes >> 4);
  }
  // d = Q K^T with as many keys of a slot as d has columns, from `first` on; one commit group. kVirtual: and the keys' weights, which
  // the producer has as an operand (see weigh()) whose product with a constant is the same for all rows.
  template <bool kVirtual, int kN>
  __device__ __forceinline__ void issue_scores(float (&d)[kN], int k_slot, int first = 0) {
    using Mma = Wgmma<T, 2 * kN>;
    const std::uint64_t kd = slot_descriptor(16, k_slot, first * 128);
    const std::uint64_t qd = matrix_descriptor(smem_address(shared.query[buffer.index]) + group * C::kBoxBytes, 16, 1024);
    [[maybe_unused]] std::uint32_t ones[4];
    if constexpr (kVirtual) ones_at_weights(ones);
    pin(d);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kQuerySteps; ++step) {
      const std::uint64_t at = (step / 4 * C::kSlabBytes + step % 4 * 32) >> 4;
      if constexpr (C::kQueryInRegisters) {
        if (step == 0)
          Mma::template rs<true, false>(d, query[step], kd + at);
        else
          Mma::template rs<false, false>(d, query[step], kd + at);
      } else {
        if (step == 0)
          Mma::template ss<true>(d, qd + at, kd + at);
        else
          Mma::template ss<false>(d, qd + at, kd + at);
      }
    }
    if constexpr (kVirtual) {
      // No swizzle: 8 rows of 16 bytes, the next 8 rows 128 bytes further; elements 8 to 15 are elements 0 to 7 again.
      const std::uint64_t weights_of_keys = (smem_address(shared.weights) & 0x3FFFF) >> 4 | std::uint64_t{128 >> 4} << 32;
      Wgmma<__nv_bfloat16, 2 * kN>::template rs<false, false>(d, ones, weights_of_keys);
    }
    wgmma_commit();
  }
  // The fragment of ones where the operand of weights has this step's parts, the same in all rows.
  __device__ __forceinline__ void ones_at_weights(std::uint32_t (&a)[4]) const {
    const int element = lane() % 4 - 2 * weights.index;
    const std::uint32_t ones = element == 0 ? 0x3f803f80 : element == 1 ? 0x3f80 : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = ones;
      asm volatile("" : "+r"(a[i]));  // before the products, or ptxas interrupts them for it
    }
  }
  __device__ __forceinline__ void wait_weights() { mbarrier_wait(&shared.weights_full[weights.index], weights.parity); }
  __device__ __forceinline__ void release_weights() {
    if (lane() == 0) mbarrier_arrive(&shared.weights_empty[weights.index]);
    weights.advance();
  }
  // The scores of the first or the second key tile of the step.
  template <int kTile>
  __device__ __forceinline__ float (&tile_scores())[kScores / 2] {
    return *reinterpret_cast<float(*)[kScores / 2]>(s + kTile * (kScores / 2));
  }

  // o += P V, one commit group.
  __device__ __forceinline__ void issue_output(int v_slot) {
    const std::uint64_t vd = slot_descriptor(C::kSlabBytes, v_slot);
    pin(o);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
      Wgmma<T, C::kD>::template rs<false, true>(o, p[step], vd + (step * 16 * 128 >> 4));
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void pack_probabilities(const float (&s)[kScores]) {
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[step][i] = pack<T>(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
    }
  }

  __device__ __forceinline__ void rescale_scores(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] *= factor[i / 2 % 2];
  }
  // p of bf16, whose range is that of f32.
  __device__ __forceinline__ void rescale_probabilities(const float (&factor)[2]) {
    const std::uint32_t factors[2] = {pack<T>(factor[0], factor[0]), pack<T>(factor[1], factor[1])};
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(p[step][i]) : "r"(factors[i % 2]));
    }
  }

  __device__ __forceinline__ void rescale_output(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] *= factor[i / 2 % 2];
  }

  __device__ __forceinline__ static void mask_missing(float (&s)[kScores], std::uint32_t valid) {
    if (valid != kAllValid) mask_tails(s, valid & 0xffff, valid >> 16);
  }

  // s <- probabilities and p <- the same as an operand, once the P V of the step before, which reads p, is done.
  template <bool kPending>
  __device__ __forceinline__ void take_probabilities(int v_slot) {
    bool rescale = false;
    float factor[2];
    if constexpr (C::kSafe) {
      float tile[2];
      RowSoftmax::tile_max(s, tile);
      rescale = softmax.follow_maximum(tile, args.scale_log2, args.slack, factor);
    }
    softmax.template exponentials<C::kTop, 0, kEarlyScores>(s, args.scale_log2);
    if constexpr (kPending && kEarlyScores < kScores) hold_exponentials();
    // Asked before the last exponentials, so that nothing waits for the answer after them: what those add counts in the next step.
    if constexpr (!C::kSafe) rescale = softmax.sums_above(sum_limit<T>());
    if constexpr (kNarrow && !C::kSafe) {
      if (rescale) {
        softmax.move_reference(sum_limit<T>(), factor);
        rescale_scores(factor);
      }
    }
    wgmma_wait<0>();
    pin(o);
    pin(s);
    if constexpr (kPending) release(v_slot);
    arrived = mbarrier_test(&shared.full[slot.index], slot.parity);
    softmax.template exponentials<C::kTop, kEarlyScores, kScores>(s, args.scale_log2);
    pack_probabilities(s);
    if constexpr (!kNarrow && !C::kSafe) {
      if (rescale) {
        softmax.move_reference(sum_limit<T>(), factor);
        rescale_probabilities(factor);
      }
    }
    if (rescale) rescale_output(factor);
  }
  // Keeps ptxas from moving the wait that follows above the exponentials: a store that never happens wants their sums, and with skip
  // test their peaks, whose instructions else come after the wait (with 1 / l alone that is better).
  __device__ __forceinline__ void hold_exponentials() const {
    if (__builtin_expect(args.Gk < 0, 0)) {
      if constexpr (C::kSkip) {
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(0), "f"(softmax.peak[0]), "f"(softmax.peak[1]) : "memory");
      }
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(0), "f"(softmax.sum[0]), "f"(softmax.sum[1]) : "memory");
    }
  }

  // ---- skip test ----

  // Scores below it let the row's step be dropped. Rows past the end are in favour.
  __device__ __forceinline__ void set_limits() {
    softmax.share_peak();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      known[r] = softmax.peak[r];
      const bool outside = queries_left <= 8 * r;
      limit[r] = outside ? kInf : fmaf(softmax.top_c(r), args.raw_per_log2, args.skip_below);
    }
    signs = signs_of(limit);
  }
  // After a step that was kept: its peaks rise rarely.
  __device__ __forceinline__ void raise_limits() {
    if (__any_sync(0xffffffffu, softmax.peak[0] != known[0] || softmax.peak[1] != known[1])) set_limits();
  }

  // A warpgroup drops a step if all of its warps may. One score that is too large decides against it: a few of them mostly hold
  // one. A warp that is against it leaves a veto and goes on at once: only warps whose own rows would allow it wait for the
  // others. All warps meet in take_turn() between two votes, so one veto is enough.
  __device__ __forceinline__ bool warp_may_drop() const {
    bool may = __all_sync(0xffffffffu, s[0] < limit[0] && s[2] < limit[1]);
    // As the exception: a jump less for the others, 1 % of a step.
    if (__builtin_expect(may, false)) may = __all_sync(0xffffffffu, scores_below(s, limit, signs));
    return may;
  }
  __device__ __forceinline__ void leave_veto() {
    if (lane() == 0) *const_cast<volatile int*>(&shared.veto[group]) = votes;
    __syncwarp();
    bar_arrive(kBarGroup + group, 128);
  }
  __device__ __forceinline__ bool no_veto() {
    bar_sync(kBarGroup + group, 128);
    return __all_sync(0xffffffffu, *const_cast<volatile int*>(&shared.veto[group]) != votes);
  }
  // The vote after a dropped step, where another drop is likely: all scores are looked at and all warps wait. Without
  // __all_sync the compiler would not know the answer, and with it the place in the ring, to be uniform.
  __device__ __forceinline__ bool all_may_drop(bool mine) { return __all_sync(0xffffffffu, bar_all(kBarGroup + group, 128, mine)); }

  // One step after the first. kPending: p holds probabilities of the step before, whose P V is to come. A dropped step leaves
  // nothing there: the P V that would follow is not issued (it would add the probabilities of an older step again), and the V
  // tile is only waited for and given back, so that the ring stays in step. Uniform in the warpgroup.
  template <bool kVirtual, bool kPending = true>
  __device__ __forceinline__ void step() {
    constexpr bool kTest = C::kSkip && !kVirtual;  // means are never skipped
    // The first key tile's scores are tested while the second's are multiplied.
    constexpr bool kTwoProducts = kTest && !kPending && C::kQueryInRegisters;
    static_assert(!(kTwoProducts && C::kLayout), "keys that are missing are masked after both products");
    const int k_slot = slot.index;
    if (!arrived) wait_slot();
    arrived = false;  // of the step after this one
    if constexpr (kVirtual) wait_weights();
    take_turn();
    if constexpr (kTwoProducts) {
      issue_scores<false>(tile_scores<0>(), k_slot);
      issue_scores<false>(tile_scores<1>(), k_slot, kTileK);
    } else {
      issue_scores<kVirtual>(s, k_slot);
    }
    slot.advance();
    const int v_slot = slot.index;
    wait_slot();
    slot.advance();
    bool mine = true;  // of the thread: its scores let the step be dropped
    if constexpr (kPending) {
      if constexpr (kTest) raise_limits();
      issue_output(v_slot);
      pass_turn();
      wgmma_wait<1>();
    } else {
      pass_turn();
      release(v_slot);
      if constexpr (kTwoProducts) {
        wgmma_wait<1>();
        pin(tile_scores<0>());
        mine = scores_below(tile_scores<0>(), limit, signs);
      }
      wgmma_wait<0>();
    }
    pin(s);
    std::uint32_t valid = 0;
    if constexpr (C::kLayout && !kVirtual) valid = shared.valid[k_slot];
    release(k_slot);
    if constexpr (kVirtual) release_weights();
    if constexpr (C::kLayout && !kVirtual) mask_missing(s, valid);
    if constexpr (kTest && kPending) {
      ++votes;
      if (!warp_may_drop()) {
        leave_veto();
      } else if (no_veto()) {
        ++dropped;
        pending = false;
        wgmma_wait<0>();
        pin(o);
        release(v_slot);
        return;
      }
    } else if constexpr (kTest) {
      mine &= kTwoProducts ? scores_below(tile_scores<1>(), limit, signs) : scores_below(s, limit, signs);
      if (all_may_drop(mine)) {
        ++dropped;
        return;
      }
    }
    take_probabilities<kPending>(v_slot);
    if constexpr (!kPending) pending = true;
  }

  __device__ __forceinline__ void reset() {
    softmax.reset();
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = 0.f;
  }

  // The scores of a row's first step.
  __device__ __forceinline__ void begin_row(const Item& it) {
    const bool virtual_keys = C::kMeans && it.list_steps == 0;
    wait_slot();
    if (virtual_keys) {
      if constexpr (C::kMeans) wait_weights();
      issue_scores<C::kMeans>(s, slot.index);
    } else {
      issue_scores<false>(s, slot.index);
    }
    wgmma_wait<0>();
    pin(s);
    release(slot.index);
    slot.advance();
    if constexpr (C::kMeans) {
      if (virtual_keys) release_weights();
    }
  }
  // Its steps up to the probabilities of the last one.
  __device__ __forceinline__ void row(const Item& it) {
    const bool virtual_keys = C::kMeans && it.list_steps == 0;
    if (virtual_keys)
      softmax.shift(kMeanLog2, args.raw_per_log2);
    else
      mask_missing(s, it.valid);
    // The reference starts at the maximum; where it follows the sums and the operand type has the range of f32, at that of the first
    // columns, a quarter.
    float tile[2];
    RowSoftmax::tile_max(reinterpret_cast<float(&)[kNarrow || C::kSafe ? kScores : kScores / 4]>(s), tile);
    softmax.start(tile, args.scale_log2);
    if constexpr (!C::kSafe) softmax.require_reference();
    softmax.template exponentials<C::kTop, 0, kScores>(s, args.scale_log2);
    pack_probabilities(s);
    if constexpr (C::kSkip) {
      queries_left = it.queries - (group * 64 + warp() * 16 + lane() / 4);
      set_limits();
      pending = true;
      dropped = 0;
    }
    int index = 1;
    if constexpr (C::kSkip) {
      // Two loops, so that a run of dropped steps is short code.
      while (index < it.list_steps) {
        for (; index < it.list_steps && pending; ++index) step<false>();
        for (; index < it.list_steps && !pending; ++index) step<false, false>();
      }
    } else {
      for (; index < it.list_steps; ++index) step<false>();
    }
    if constexpr (C::kMeans) {
      if (!virtual_keys && index < it.steps) softmax.shift(kMeanLog2, args.raw_per_log2);
      if constexpr (C::kSkip) {
        if (!pending && index < it.steps) step<true, false>(), ++index;
      }
      for (; index < it.steps; ++index) step<true>();
      if (it.steps > it.list_steps) softmax.shift(-kMeanLog2, args.raw_per_log2);
    }
    if (C::kSkip && group * 64 < it.queries) {
      tested += it.list_steps;
      skipped += dropped;
    }
  }

  // The P V of its last step.
  __device__ __forceinline__ void end_row() {
    wait_slot();
    arrived = false;
    if (!C::kSkip || pending) {
      issue_output(slot.index);
      wgmma_wait<0>();
      pin(o);
    }
    release(slot.index);
    slot.advance();
  }

  __device__ __forceinline__ void write_output() {
    const Item& it = shared.item[buffer.index];  // from there: no registers hold it meanwhile
    softmax.finish();
    const float scale[2] = {softmax.normaliser(0), softmax.normaliser(1)};
    const int row = warp() * 16 + lane() / 4;
    if (lane() % 4 == 0) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        std::int64_t q = it.q0 + group * 64 + row + 8 * r;
        if (q - it.q0 < it.queries) {
          if constexpr (C::kLayout) q = args.query_tokens[q];
          if (args.lse != nullptr) {
            args.lse[it.b * args.lse_stride_b + it.h * args.lse_stride_h + q * args.lse_stride_s] = softmax.lse(r);
          }
          if (C::kTop && args.inv_l != nullptr) {
            args.inv_l[it.b * args.inv_l_stride_b + it.h * args.inv_l_stride_h + q * args.inv_l_stride_s] = softmax.inv_l(r);
          }
        }
      }
    }
    if constexpr (!C::kSafe) {
      if (__any_sync(0xffffffffu, softmax.lost) && lane() == 0 && it.q0 < args.Sq && atomicExch(args.redo_flags + it.row, 1) == 0) {
        args.redo_rows[atomicAdd(args.redo_count, 1)] = it.row;
      }
    }
    // O takes the place of the warp's rows of Q. Fragments of these were read by the warp itself, an operand by all four.
    if constexpr (!C::kQueryInRegisters) bar_sync(kBarGroup + group, 128);
    std::uint8_t* to = shared.query[buffer.index] + group * C::kBoxBytes;
    const int store_row = warp() * 16 + lane() % 16;
    const std::uint32_t base = smem_address(to) + store_row * 128;
#pragma unroll
    for (int j = 0; j < C::kD / 16; ++j) {  // 16 columns at a time
      const float* d = o + 8 * j;
      const int chunk = j % 4 * 2 + lane() / 16;
      stmatrix_x4(base + j / 4 * C::kSlabBytes + ((chunk ^ store_row % 8) * 16), pack<T>(d[0] * scale[0], d[1] * scale[0]),
                  pack<T>(d[2] * scale[1], d[3] * scale[1]), pack<T>(d[4] * scale[0], d[5] * scale[0]),
                  pack<T>(d[6] * scale[1], d[7] * scale[1]));
    }
    fence_async_proxy();
    __syncwarp();
    if (lane() == 0) {
      mbarrier_arrive(&shared.out_full[buffer.index]);
      mbarrier_arrive(&shared.item_empty[buffer.index]);
    }
  }

  __device__ __forceinline__ void run() {
    if (group == 1) bar_arrive(kBarTurn, kConsumerThreads);
    while (true) {
      mbarrier_wait(&shared.query_full[buffer.index], buffer.parity);
      // With the skip test, ptxas makes better loops if the fields stay in shared memory: 1 to 3 % of a step.
      const std::conditional_t<C::kSkip, const Item&, Item> it = shared.item[buffer.index];
      if (it.row < 0) break;
      if constexpr (C::kQueryInRegisters) load_query();
      reset();
      if (it.steps > 0) {
        begin_row(it);
        row(it);
        end_row();
      }
      write_output();
      buffer.advance();
    }
    // The last turn that was passed to group 0 is taken, so that the barrier ends as it began.
    if (group == 0) bar_sync(kBarTurn, kConsumerThreads);
    if (threadIdx.x % 128 == 0) {
      if (C::kSkip && args.granules != nullptr) {
        atomicAdd(args.granules, static_cast<unsigned long long>(tested));
        atomicAdd(args.granules + 1, static_cast<unsigned long long>(skipped));
      }
    }
  }
};

template <class C>
__global__ void __launch_bounds__(kThreads, 1) sm90_attend(const __grid_constant__ KernelArgs args) {
  extern __shared__ std::uint8_t memory[];
  // It begins at a multiple of 1024, which the swizzle needs, where a kernel has no other shared memory. Written as if it need not:
  // ptxas then keeps addresses in uniform registers, else it moves them there between a warpgroup's turn and its products, up to 4 %.
  Shared<C>& shared = *reinterpret_cast<Shared<C>*>(memory + (-smem_address(memory) & 1023));
  if (threadIdx.x == 0) {
    if (smem_address(memory) % 1024 != 0) __trap();
    shared.veto[0] = shared.veto[1] = 0;
    for (int i = 0; i < C::kSlots; ++i) {
      mbarrier_init(&shared.full[i], 1);
      mbarrier_init(&shared.empty[i], kConsumerWarps * C::kCtas);
    }
    for (int i = 0; i < C::kQueryBuffers; ++i) {
      mbarrier_init(&shared.query_full[i], 1);
      mbarrier_init(&shared.query_empty[i], 1);
      mbarrier_init(&shared.item_empty[i], kConsumerWarps + (C::kMeans ? 3 : 2));  // and the producers but hand_out()
      mbarrier_init(&shared.out_full[i], kConsumerWarps);
    }
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(&shared.weights_full[i], 1);
      mbarrier_init(&shared.weights_empty[i], kConsumerWarps);
    }
    mbarrier_init_fence();
    prefetch_tensor_map(&args.q);
    prefetch_tensor_map(&args.k);
    prefetch_tensor_map(&args.v);
    prefetch_tensor_map(&args.out);
  }
  __syncthreads();
  if constexpr (C::kPairs) cluster_sync();  // the other CTA's barriers are ready
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
  if (warp < kProducerThreads / 32) {
    registers_decrease<kProducerRegisters>();
    if (warp == 0) load_tiles<C>(args, shared);
    if (warp == 1) hand_out<C>(args, shared);
    if (warp == 2) store_outputs<C>(args, shared);
    if constexpr (C::kMeans) {
      if (warp == 3) weigh<C>(args, shared);
    }
  } else {
    registers_increase<kConsumerRegisters>();
    Consumer<C>(args, shared, (warp - kProducerThreads / 32) / 4).run();
  }
  if constexpr (C::kPairs) {
    __syncwarp();
    cluster_sync();  // no copy or arrival of the other CTA may find this one gone
  }
}

}  // namespace winnow::sm90
