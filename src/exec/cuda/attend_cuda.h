// One attention call on a GPU as plain device pointers, filled by executors.cu, and the kernels that take it. Nothing here
// allocates, synchronises or reads device memory from the host, so a call can be captured in a CUDA graph.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace winnow::cuda {

inline constexpr int kTileQ = 128;     // queries of a plan row
inline constexpr int kTileK = 64;      // keys of a list entry, and of a virtual key
inline constexpr int kAlignment = 16;  // bytes, of addresses and strides

enum class Operand : std::int32_t { bf16, f16 };

// A [B,S,H,D] tensor: strides in elements, D contiguous, 16-byte aligned rows.
struct StridedTensor {
  void* data = nullptr;
  std::int64_t stride_b = 0, stride_s = 0, stride_h = 0;
};

// A [B,H,S] f32 tensor, or null.
struct StridedStats {
  float* data = nullptr;
  std::int64_t stride_b = 0, stride_h = 0, stride_s = 0;
};

// Tiles of a layout may be short. Its call has q, k, v and out with all tiles filled up: Sq = kTileQ * Gq, Sk = kTileK * Gk, where
// keys of no token are zeros. What is missing of a key tile is in its list entries: tile | missing keys << kMissingShift.
inline constexpr int kMissingShift = 24;
inline constexpr std::int32_t kTileMask = (1 << kMissingShift) - 1;
struct LayoutTables {
  const std::int32_t* query_tokens = nullptr;  // [kTileQ * Gq] the token of a row of q, -1: none
  const std::int32_t* query_rows = nullptr;    // [tokens] and the row of a token
  const std::int32_t* key_tokens = nullptr;    // [kTileK * Gk] the same of keys
  const std::int32_t* tile_queries = nullptr;  // [Gq] tokens of a tile
  const std::int32_t* tile_keys = nullptr;     // [Gk]
  const float* mean_log2 = nullptr;            // [32 * mean_words] log2 of (tokens of a key tile / kTileK)
};

struct AttendCall {
  Operand operand = Operand::bf16;
  std::int32_t D = 128;  // 64 or 128
  std::int64_t B = 1, H = 1, Hk = 1, Sq = 0, Sk = 0;
  StridedTensor q;    // [B,Sq,H,D]
  StridedTensor k;    // [B,Sk,Hk,D]
  StridedTensor v;    // [B,Sk,Hk,D]
  StridedTensor out;  // [B,Sq,H,D]

  // The plan. rows = B * H * ceil(Sq / 128), row = (b * H + h) * ceil(Sq / 128) + query tile.
  const std::int64_t* offsets = nullptr;      // [rows + 1], or null: every key tile (the identity plan)
  const std::int32_t* tiles = nullptr;        // [offsets[rows]] 64-key tiles, ascending per row
  std::int64_t list_period = 0;               // rows after which the lists repeat; 0: never
  const std::int32_t* order = nullptr;        // [rows] as order_rows() makes it, or null: ascending rows
  const std::int32_t* key_lengths = nullptr;  // [B], or null: Sk. K and V past a length must be finite.

  // Virtual keys for tiles that are not listed, or null: they are dropped.
  StridedTensor k_mean, v_mean;              // [B,ceil(Sk/64),Hk,D]
  const std::uint32_t* mean_bits = nullptr;  // [rows, mean_words(Sk)] as mark_means() makes it

  LayoutTables layout;  // of a plan with one; lists are needed then

  StridedStats lse;    // natural log; -inf for an empty row. Of tokens, also with a layout
  StridedStats inv_l;  // 1 / l with the true maximum; 0 for an empty row

  float scale = 0;  // > 0
  // Drop a granule (see the executors' records) whose logits are all below the running maximum by this much, in log2. -inf: off.
  float skip_threshold_log2 = -__builtin_huge_valf();
  std::uint64_t* granules = nullptr;  // [2] tested and skipped, added to; or null
  std::int32_t* scratch = nullptr;    // of sm90: [sm90::scratch_words(rows)] written by the call
};

// 32-bit words of one row of mean_bits: 4 per 128 key tiles.
std::int64_t mean_words(std::int64_t Sk);

// order: [B*H*Gq] rows sorted for the work queue: groups of heads whose K and V share the L2 cache, one group after another,
// and in each group the longest rows first. offsets: [rows + 1].
void order_rows(const std::int64_t* offsets, std::int32_t* order, std::int64_t rows, std::int64_t rows_per_group, CUstream_st* stream);

// mean_bits: [rows, mean_words] one bit for each valid key tile that is neither listed nor excluded. Each `offsets` may be
// null (no list); `key_lengths` as in AttendCall. candidates: [Gq, 2] the key tiles that exist for a query tile, or null: all.
void mark_means(std::uint32_t* mean_bits, std::int64_t rows, std::int64_t rows_per_batch, std::int64_t Sk, const std::int32_t* key_lengths,
                const std::int64_t* refine_offsets, const std::int32_t* refine_tiles, const std::int64_t* skim_offsets,
                const std::int32_t* skim_tiles, const std::int64_t* excluded_offsets, const std::int32_t* excluded_tiles,
                const std::int32_t* candidates, std::int64_t Gq, CUstream_st* stream);

// mean: [B,ceil(S/64),Hk,D] contiguous, the means of 64 tokens of x [B,S,Hk,D] over those below key_lengths[b] (or S) and, unless it
// is null, the first tile_keys[tile] of a tile. f32 sums.
void key_means(void* mean, const StridedTensor& x, Operand operand, std::int64_t B, std::int64_t S, std::int64_t Hk, std::int64_t D,
               const std::int32_t* key_lengths, const std::int32_t* tile_keys, CUstream_st* stream);

// to [B,rows,H,D] contiguous <- the tokens of x, zeros where a token is -1.
void gather_tokens(void* to, const StridedTensor& x, const std::int32_t* tokens, std::int64_t B, std::int64_t rows, std::int64_t H,
                   std::int64_t D, CUstream_st* stream);
// out [B,tokens,H,D] <- the rows of `from` [B,rows,H,D] contiguous. Where a row is -1: O = 0, lse = -inf, inv_l = 0.
void scatter_tokens(const StridedTensor& out, const void* from, const std::int32_t* query_rows, const StridedStats& lse,
                    const StridedStats& inv_l, std::int64_t B, std::int64_t tokens, std::int64_t rows, std::int64_t H, std::int64_t D,
                    CUstream_st* stream);

}  // namespace winnow::cuda

namespace winnow::sm90 {

std::int64_t scratch_words(std::int64_t rows);

// Two launches: the second does again what the first could not, usually nothing (see RowSoftmax). Throws Error if the shape, alignment or
// device does not fit.
void launch_attend(const cuda::AttendCall& call, CUstream_st* stream);

}  // namespace winnow::sm90

namespace winnow::sm80 {

// Throws Error if CUDA refuses the launch.
void launch_attend(const cuda::AttendCall& call, CUstream_st* stream);

}  // namespace winnow::sm80
