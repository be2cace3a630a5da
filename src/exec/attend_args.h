// What an executor gets: one attention call as plain numbers and pointers, checked. Not a public header.
#pragma once

#include <cstdint>

#include "winnow/plan.h"
#include "winnow/tensor.h"

namespace winnow {

class DevicePlan;

// Element strides of a [B,S,H,D] tensor; D is contiguous.
struct Strides {
  std::int64_t batch = 0;
  std::int64_t token = 0;
  std::int64_t head = 0;
};
// Element strides of a [B,H,Sq] tensor.
struct RowStrides {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t token = 0;
};

struct AttendArgs {
  const TilePlan* plan = nullptr;           // of a call on the CPU
  const DevicePlan* device_plan = nullptr;  // of a call on a GPU

  std::int64_t B = 0;
  std::int64_t H = 0;
  std::int64_t Hk = 0;  // query head h reads key head h / (H / Hk)
  std::int64_t Sq = 0;
  std::int64_t Sk = 0;
  int D = 0;

  DType dtype = DType::f32;      // of q, k, v: f32, f16 or bf16
  DType out_dtype = DType::f32;  // f32, f16 or bf16
  const void* q = nullptr;       // [B,Sq,H,D]
  const void* k = nullptr;       // [B,Sk,Hk,D]
  const void* v = nullptr;       // [B,Sk,Hk,D]
  void* out = nullptr;           // [B,Sq,H,D]
  Strides q_strides, k_strides, v_strides, out_strides;

  float* lse = nullptr;    // [B,H,Sq], natural log; may be null
  float* inv_l = nullptr;  // [B,H,Sq]; may be null
  RowStrides lse_strides, inv_l_strides;

  float scale = 1.0F;                // logits are scale * q.k; finite
  float skip_threshold_log2 = 0.0F;  // <= 0; -inf: no skip test

  void* stream = nullptr;               // of a call on a GPU
  std::int64_t* skip_counts = nullptr;  // [2] in device memory, or null
  float* skip_gaps_log2 = nullptr;      // [B, H, ceil(Sq / granule rows), ceil(Sk / granule keys)], contiguous; may be null
};

// Skip-softmax bookkeeping, in (granule x unit of keys).
struct SkipCounts {
  std::int64_t tested = 0;
  std::int64_t skipped = 0;
};

// What one vote of the skip test covers: `rows` consecutive queries of a query tile, counted from its first query, and
// `keys` keys: several consecutive tiles of a list, one tile, or a part of one, as tile_k says.
struct SkipGranule {
  // Which keys come first.
  enum class Order {
    tiers,      // those of refine tiles, then those of skim tiles, each ascending
    ascending,  // of both tiers as one list
    last_first  // the same, but its last unit first: the only one that may be ragged
  };
  int rows = 128;
  int keys = 64;
  Order order = Order::tiers;
};

}  // namespace winnow
