// Online softmax of one warpgroup's 64 x 128 score tile in wgmma's accumulator layout. Each thread holds parts of two rows
// (r = 0, 1); the four lanes of a quad share them.
#pragma once

#include <cmath>

#include "exec/cuda/ptx.cuh"

namespace winnow::sm90 {

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
// Floats of one sign compare as integers do: one instruction for two numbers more. The largest of numbers of which at least one
// is not negative (negative otherwise):
__device__ __forceinline__ float max_nonnegative(float a, float b, float c) {
  return __int_as_float(__vimax3_s32(__float_as_int(a), __float_as_int(b), __float_as_int(c)));
}
// The largest of negative numbers (not negative if one of them is not):
__device__ __forceinline__ float max_negative(float a, float b, float c) {
  return __uint_as_float(__vimin3_u32(__float_as_uint(a), __float_as_uint(b), __float_as_uint(c)));
}

// Scores are raw q.k products; c = scale * log2(e) turns them into exponents of 2.
//
// Sums are kept relative to a reference, which starts at a maximum of the row's first step and moves rarely. Every result
// is a quotient of such sums, so that it depends on the reference by rounding only.
//   follow_maximum: before the exponentials, by the tile's maximum, when a row of the warp has outgrown it by `slack`.
//   move_reference: after the exponentials, when a sum has become large. Needs no maximum: a fifth of the instructions of a step,
//   and exponentials that start at once. A row that grows by more than 2^100 within one tile is lost.
struct RowSoftmax {
  static constexpr float kMostSum = 0x1p100f;  // of which P V has no overflow, and the largest factor by which the reference moves

  float reference[2];    // the maximum that it was last set to, the same in the four lanes of a quad; -inf: none yet
  float reference_c[2];  // the reference as an exponent of 2; 0 while there is none
  float sum[2];          // this lane's part of sum exp2(c * score - reference_c)
  float peak[2];         // and of the largest of these exponentials: where the true maximum is
  bool lost;             // the sums have overflowed

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference[r] = -kInf;
      reference_c[r] = sum[r] = peak[r] = 0.f;
    }
    lost = false;
  }

  // tile <- maxima of s. Four chains per row: with two, each instruction waits for the one before it.
  template <int kN>
  static __device__ __forceinline__ void tile_max(const float (&s)[kN], float (&tile)[2]) {
    float part[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) part[i] = s[i];
#pragma unroll
    for (int i = 8; i < kN; ++i) part[i % 8] = max_nan(part[i % 8], s[i]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      tile[r] = max_nan(max_nan(part[2 * r], part[2 * r + 1]), max_nan(part[2 * r + 4], part[2 * r + 5]));
    }
  }

  // Every lane of a quad learns the row's peak.
  __device__ __forceinline__ void share_peak() {
#pragma unroll
    for (int r = 0; r < 2; ++r) peak[r] = quad_max(peak[r]);
  }
  // The row's true maximum as an exponent of 2, once the peak is shared; -inf: no finite score yet.
  __device__ __forceinline__ float top_c(int r) const { return lg2(peak[r]) + reference_c[r]; }

  // Of a row that has no reference yet. `tile`: this lane's part of the first maxima.
  __device__ __forceinline__ void start(const float (&tile)[2], float c) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference[r] = quad_max(tile[r]);
      reference_c[r] = reference[r] == -kInf ? 0.f : reference[r] * c;
    }
  }

  // `tile`: this lane's part of the tile's maxima. Returns whether sums were rescaled: O must then be multiplied by `factor`.
  // The answer is the same in the whole warp.
  __device__ __forceinline__ bool follow_maximum(const float (&tile)[2], float c, float slack, float (&factor)[2]) {
    if (!__any_sync(0xffffffffu, tile[0] > reference[0] + slack || tile[1] > reference[1] + slack)) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float next = fmaxf(reference[r], quad_max(tile[r]));
      const float next_c = next == -kInf ? 0.f : next * c;
      factor[r] = reference[r] == -kInf ? 0.f : ex2(reference_c[r] - next_c);
      sum[r] *= factor[r];
      peak[r] *= factor[r];
      reference[r] = next;
      reference_c[r] = next_c;
    }
    return true;
  }

  // After exponentials are in the sums: whether the reference must move. The answer is the same in the whole warp.
  __device__ __forceinline__ bool sums_above(float limit) const { return __any_sync(0xffffffffu, sum[0] > limit || sum[1] > limit); }
  // Then: probabilities and O must be multiplied by `factor`, a power of 2, so that nothing is rounded.
  __device__ __forceinline__ void move_reference(float limit, float (&factor)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float most = quad_max(sum[r]);
      lost |= most > kMostSum;
      const int exponent = most > limit ? min((__float_as_int(most) >> 23) - 127, 100) : 0;
      factor[r] = __int_as_float((127 - exponent) << 23);
      reference_c[r] += static_cast<float>(exponent);
      sum[r] *= factor[r];
      peak[r] *= factor[r];
    }
  }
  // Without a finite score in the first tile there is no reference for move_reference() to start from.
  __device__ __forceinline__ void require_reference() { lost |= reference[0] == -kInf || reference[1] == -kInf; }

  // Reads the scores until the opposite shift as if they were larger by `log2_weight` exponents of 2.
  __device__ __forceinline__ void shift(float log2_weight, float raw_per_log2) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference[r] -= log2_weight * raw_per_log2;
      reference_c[r] -= log2_weight;
    }
  }

  // s <- exp2(c * s - reference_c) and its sums; with kPeak, its peaks.
  template <bool kPeak, int kBegin, int kEnd, int kN>
  __device__ __forceinline__ void exponentials(float (&s)[kN], float c) {
#pragma unroll
    for (int i = kBegin; i < kEnd; i += 4) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[i + j] = ex2(fmaf(s[i + j], c, -reference_c[j / 2]));
        sum[j / 2] += s[i + j];
      }
      if constexpr (kPeak) {
#pragma unroll
        for (int r = 0; r < 2; ++r) peak[r] = max_nonnegative(peak[r], s[i + 2 * r], s[i + 2 * r + 1]);
      }
    }
  }

  // Row sums over the quad; afterwards every lane of it holds the row's values.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = quad_sum(sum[r]);
      lost |= sum[r] > kMostSum;
    }
    share_peak();
  }
  // 1 / sum, 0 for a row without keys.
  __device__ __forceinline__ float normaliser(int r) const { return sum[r] == 0.f ? 0.f : reciprocal(sum[r]); }
  __device__ __forceinline__ float lse(int r) const {
    constexpr float kLn2 = 0.6931471805599453f;
    return sum[r] == 0.f ? -kInf : (reference_c[r] + log2f(sum[r])) * kLn2;
  }
  // 1 / l, l relative to the true maximum.
  __device__ __forceinline__ float inv_l(int r) const { return sum[r] == 0.f ? 0.f : peak[r] * reciprocal(sum[r]); }
};

// In the four chains of two rows, the largest score as `larger` of three sees it.
template <int kN, class Larger>
__device__ __forceinline__ void tile_max_by(const Larger& larger, const float (&s)[kN], float (&tile)[2]) {
  float part[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) part[j] = larger(s[2 * j], s[2 * j], s[2 * j + 1]);
#pragma unroll
  for (int i = 8; i < kN; i += 8) {
#pragma unroll
    for (int j = 0; j < 4; ++j) part[j] = larger(part[j], s[i + 2 * j], s[i + 2 * j + 1]);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) tile[r] = larger(part[r], part[r], part[r + 2]);
}

// What all limits of a warp's rows have in common.
enum class Signs { mixed, nonnegative, negative };
__device__ __forceinline__ Signs signs_of(const float (&limit)[2]) {
  if (__all_sync(0xffffffffu, limit[0] >= 0.f && limit[1] >= 0.f)) return Signs::nonnegative;
  return __all_sync(0xffffffffu, limit[0] < 0.f && limit[1] < 0.f) ? Signs::negative : Signs::mixed;
}

// Whether all scores of this thread are below their rows' limits. A NaN is not: those of wgmma are positive numbers' bits.
template <int kN>
__device__ __forceinline__ bool scores_below(const float (&s)[kN], const float (&limit)[2], Signs signs) {
  float tile[2];
  // A limit of one sign asks only for the largest score of that sign: half the instructions of RowSoftmax::tile_max(), if all
  // rows of the warp are alike.
  if (signs == Signs::nonnegative) {
    tile_max_by([](float a, float b, float c) { return max_nonnegative(a, b, c); }, s, tile);
  } else if (signs == Signs::negative) {
    tile_max_by([](float a, float b, float c) { return max_negative(a, b, c); }, s, tile);
  } else {
    RowSoftmax::tile_max(s, tile);
  }
  return tile[0] < limit[0] && tile[1] < limit[1];
}

// Of two tiles of kTileK columns, those from `valid` on take no part. Lane t of a quad holds columns 8 * i + 2 * t + {0, 1}.
template <int kN>
__device__ __forceinline__ void mask_tails(float (&s)[kN], int valid0, int valid1) {
  const int lane = 2 * static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int i = 0; i < kN / 4; ++i) {
    const int half = kN / 8;
    const int first = (i < half ? valid0 : valid1) - lane;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (8 * (i % half) + e >= first) s[4 * i + e] = s[4 * i + 2 + e] = -kInf;
    }
  }
}

}  // namespace winnow::sm90
