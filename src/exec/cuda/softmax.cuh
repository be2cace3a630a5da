// Online softmax of one warpgroup's 64 x 128 score tile in wgmma's accumulator layout. Each thread holds parts of two rows
// (r = 0, 1); the four lanes of a quad share them.
#pragma once

#include <cmath>

#include "exec/cuda/ptx.cuh"

namespace winnow::sm90 {

inline constexpr float kInf = __builtin_huge_valf();

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Scores are raw q.k products; c = scale * log2(e) turns them into exponents of 2.
//
// Sums are kept relative to `reference`, which follows the row maximum lazily: it moves only when some row of the warp has
// grown by more than `slack`, chosen so that probabilities stay below 2^8. In the common case a tile then needs no
// shuffle and no pass over O; the result does not depend on it beyond rounding. `top` is the true maximum.
struct RowSoftmax {
  float reference[2];    // the same in the four lanes of a quad
  float reference_c[2];  // reference * c; 0 while nothing has been seen
  float top[2];          // this lane's part of the true maximum
  float sum[2];          // this lane's part of sum exp2(c * (score - reference))

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference[r] = top[r] = -kInf;
      reference_c[r] = sum[r] = 0.f;
    }
  }

  // Two chains per row: one dependent chain of 32 would be longer than the tile's exponentials can hide.
  template <int kN>
  static __device__ __forceinline__ void tile_max(const float (&s)[kN], float (&tile)[2]) {
    float part[4] = {s[0], s[1], s[2], s[3]};
#pragma unroll
    for (int i = 4; i < kN; i += 4) {
#pragma unroll
      for (int j = 0; j < 4; ++j) part[j] = fmaxf(part[j], s[i + j]);
    }
    tile[0] = fmaxf(part[0], part[1]);
    tile[1] = fmaxf(part[2], part[3]);
  }

  // Takes the tile's maxima (this lane's part) in. Returns whether sums were rescaled: O must then be multiplied by
  // `factor`. The answer is the same in the whole warp.
  __device__ __forceinline__ bool follow(float (&tile)[2], float c, float slack, float (&factor)[2]) {
    const bool grown = tile[0] > reference[0] + slack || tile[1] > reference[1] + slack;
#pragma unroll
    for (int r = 0; r < 2; ++r) top[r] = fmaxf(top[r], tile[r]);
    if (!__any_sync(0xffffffffu, grown)) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float next = fmaxf(reference[r], quad_max(tile[r]));
      const float next_c = next == -kInf ? 0.f : next * c;
      factor[r] = reference[r] == -kInf ? 0.f : ex2(reference_c[r] - next_c);
      sum[r] *= factor[r];
      reference[r] = next;
      reference_c[r] = next_c;
    }
    return true;
  }

  // s <- exp2(c * (s - reference)), and its sums. Unless kExact, columns i of 8 with i % 8 < kPolynomial of each lane's
  // pairs go to the FMA units.
  template <bool kExact, int kPolynomial, int kN>
  __device__ __forceinline__ void exponentials(float (&s)[kN], float c) {
#pragma unroll
    for (int i = 0; i < kN; i += 4) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float x = fmaf(s[i + 2 * r + e], c, -reference_c[r]);
          s[i + 2 * r + e] = !kExact && (i / 4 * 2 + e) % 8 < kPolynomial ? ex2_polynomial(x) : ex2(x);
        }
        sum[r] += s[i + 2 * r];
        sum[r] += s[i + 2 * r + 1];
      }
    }
  }

  // The skip test compares with the whole row's maximum.
  __device__ __forceinline__ void share_top() {
#pragma unroll
    for (int r = 0; r < 2; ++r) top[r] = quad_max(top[r]);
  }

  // Row sums over the quad; afterwards every lane of it holds the row's values.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = quad_sum(sum[r]);
      top[r] = quad_max(top[r]);
    }
  }
  // 1 / sum, 0 for a row without keys.
  __device__ __forceinline__ float normaliser(int r) const { return sum[r] == 0.f ? 0.f : 1.f / sum[r]; }
  __device__ __forceinline__ float lse(int r) const {
    constexpr float kLn2 = 0.6931471805599453f;
    return sum[r] == 0.f ? -kInf : (reference_c[r] + log2f(sum[r])) * kLn2;
  }
  __device__ __forceinline__ float inv_l(int r, float c) const {
    return sum[r] == 0.f ? 0.f : 1.f / (sum[r] * ex2(fmaf(-top[r], c, reference_c[r])));
  }
};

// Columns from `valid` on take no part. Lane t of a quad holds columns 8 * i + 2 * t + {0, 1}.
template <int kN>
__device__ __forceinline__ void mask_tail(float (&s)[kN], int valid) {
  const int first = valid - 2 * static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int i = 0; i < kN / 4; ++i) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (8 * i + e >= first) s[4 * i + e] = s[4 * i + 2 + e] = -kInf;
    }
  }
}

// Scores of virtual keys: + `bias` (log2 of the tokens that a mean stands for, in raw score units), `tail_bias` in column
// `tail`; columns without a bit take no part. `bits`: 128 columns.
template <int kN>
__device__ __forceinline__ void weigh_means(float (&s)[kN], uint4 bits, float bias, int tail, float tail_bias) {
  const int shift = 2 * static_cast<int>(threadIdx.x % 4);
  const std::uint32_t words[4] = {bits.x >> shift, bits.y >> shift, bits.z >> shift, bits.w >> shift};
#pragma unroll
  for (int i = 0; i < kN / 4; ++i) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const bool used = words[i / 4] >> (8 * (i % 4) + e) & 1;
      const float b = 8 * i + e == tail - shift ? tail_bias : bias;
#pragma unroll
      for (int r = 0; r < 2; ++r) s[4 * i + 2 * r + e] = used ? s[4 * i + 2 * r + e] + b : -kInf;
    }
  }
}

}  // namespace winnow::sm90
