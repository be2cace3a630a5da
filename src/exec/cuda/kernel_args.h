// What the sm_90a attention kernel is launched with. Plain data, filled by the host once per call; no policy.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace winnow::sm90 {

// Every shape that the kernel's tensor maps and lists depend on.
inline constexpr int kTileQ = 128;     // query rows of a work item: one warpgroup takes 64
inline constexpr int kTileK = 64;      // keys of a list entry
inline constexpr int kStepKeys = 128;  // keys of one step: two list entries
inline constexpr int kBoxRows = 64;    // rows of one tensor copy
inline constexpr int kBoxCols = 64;    // 128 bytes: the widest box that the 128-byte swizzle takes

// When a step looks for the maximum of its scores.
//   never: the exponents' reference follows the sums (see RowSoftmax); 1 / l is not known
//   beside: so does it, and the maximum is found among the exponentials, whose unit is the slower one
//   before: the reference follows the maximum, which every exponential waits for. The others list the rows whose sums have
//   overflowed; this one does them again.
enum class Maximum { never, beside, before };

// What rows attend to.
//   listed: the tiles of their lists, all full but the last one of a batch entry
//   means: and the means of others
//   layout: the same of a plan with a layout: any tile may be short, and there may be no means
// Kernels of their own: a branch that is never taken costs a step 5 %, and a step of means more than it may.
enum class Keys { listed, means, layout };

struct KernelArgs {
  // Tensor maps over [B,S,H,D] in the order d, token, head, batch; box kBoxCols x kBoxRows, 128-byte swizzle.
  CUtensorMap q;       // [B,Sq,H,D]
  CUtensorMap k;       // [B,Sk,Hk,D]
  CUtensorMap v;       // [B,Sk,Hk,D]
  CUtensorMap out;     // [B,Sq,H,D]
  CUtensorMap k_mean;  // [B,Gk,Hk,D], only with means
  CUtensorMap v_mean;  // [B,Gk,Hk,D], only with means

  // The plan, in device memory. Rows are (b * H + h) * Gq + query tile.
  const std::int64_t* offsets;      // [rows + 1], or null: every row lists all key tiles of its batch entry
  const std::int32_t* tiles;        // [offsets[rows]] ascending per row; see cuda::kMissingShift
  int list_period;                  // rows after which the lists repeat
  const std::int32_t* order;        // [rows] the rows in the order they are taken, or null: ascending
  const std::uint32_t* mean_bits;   // [rows, mean_words] bit g: key tile g comes as its mean; or null
  const std::int32_t* key_lengths;  // [B] valid keys, or null: Sk

  // Of a plan with a layout, or null; see cuda::LayoutTables.
  const std::int32_t* query_tokens;  // [Gq * kTileQ]
  const std::int32_t* tile_queries;  // [Gq]
  const float* mean_log2;            // [32 * mean_words]

  // Optional outputs [B,H,Sq], or null. Strides in elements.
  float* lse;    // natural log
  float* inv_l;  // 1 / l with the true maximum
  std::int64_t lse_stride_b, lse_stride_h, lse_stride_s;
  std::int64_t inv_l_stride_b, inv_l_stride_h, inv_l_stride_s;

  // Work: rows, or *item_count entries of `order`.
  const std::int32_t* item_count;  // or null
  std::int32_t* next_item;         // [1] zero at launch: hands out work
  // Rows that a kernel with Maximum::before must do again.
  std::int32_t* redo_count;      // [1] zero at launch
  std::int32_t* redo_flags;      // [rows] zero at launch
  std::int32_t* redo_rows;       // [rows]
  unsigned long long* granules;  // [2] tested, skipped: added to; only with the skip test

  int B, H, Hk, Sq, Sk;
  int Gq, Gk;      // tiles of queries and keys
  int rows;        // B * H * Gq
  int mean_words;  // 32-bit words of a row of mean_bits: 4 per step of means

  float scale_log2;    // scale * log2(e), > 0
  float slack;         // how far a maximum may grow before sums are rescaled, in raw q.k units
  float raw_per_log2;  // 1 / scale_log2
  float skip_below;    // a granule is skipped when (its maximum - running maximum) < this, in raw q.k units
};

}  // namespace winnow::sm90
