// Running a plan: attention over exactly the tiles that it lists.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "winnow/plan.h"
#include "winnow/tensor.h"

namespace winnow {

class Workspace;

// Optional outputs per query row; empty views are not written. Both [B,H,Sq] f32, any strides.
struct RowStats {
  TensorView lse = {};    // natural log of the sum of exp(logits) over everything computed, means included; -inf for an empty row
  TensorView inv_l = {};  // 1 / sum of exp(logit - max logit): the row's largest softmax weight; 0 for an empty row
};

struct AttendOptions {
  // Logits are scale * q.k. NaN (the default) means 1/sqrt(D).
  float scale = std::numeric_limits<float>::quiet_NaN();
  // Skip-softmax: a key tile is dropped when for every row of the skip granule (see ExecutorInfo)
  //   (max of the tile's logits - running max before it) * log2(e) < skip_threshold_log2
  // The first tile of a row is never dropped. -inf: off. Must be <= 0.
  float skip_threshold_log2 = -std::numeric_limits<float>::infinity();
  // Output for calibration, not written if empty: what the skip test compares with its threshold, for every granule, so that one
  // dense pass tells what every threshold would skip: exactly the granules with gap < skip_threshold_log2.
  //   [B, H, ceil(Sq / skip_rows), ceil(Sk / skip_keys)] f32, contiguous: max over the granule's rows of
  //   (max of the tile's logits - running max before it) * log2(e); +inf where nothing is ever dropped: the first tile, NaN and Inf
  // Takes a dense plan whose tiles are multiples of the granule.
  TensorView skip_gaps_log2 = {};
  RowStats stats = {};
  // Executor name, or empty: the environment variable WINNOW_EXECUTOR, else the first that fits.
  std::string_view executor = {};
  // For calls on a GPU (winnow/cuda.h) only.
  void* stream = nullptr;       // a cudaStream_t; null: the default stream
  TensorView skip_counts = {};  // [2] i64 in its memory: granules tested and skipped are added to it, if given and tests are on
};

struct AttendResult {
  const char* executor = "";  // the one that ran
  // Skip-softmax bookkeeping, in (skip granule x key tile) units. 0 on a GPU, which is not waited for: see skip_counts.
  std::int64_t granules_tested = 0;   // all that were computed up to their logits
  std::int64_t granules_skipped = 0;  // of those, dropped before softmax and PV
};

// O = softmax(scale Q K^T restricted to the plan) V. Throws Error on any mismatch, before any work.
//   q [B,Sq,H,D]  k, v [B,Sk,Hk,D], H % Hk == 0   out [B,Sq,H,D]    one dtype of f32, f16, bf16; out may differ from it
// D must be contiguous, the other strides are free. What is written (out, lse, inv_l) may not share memory with anything else of
// the call, element by element: heads or rows that interleave in one buffer are fine. Empty rows give O = 0. Non-finite inputs
// propagate as IEEE says.
// Scratch comes from `ws` only; it is given back before returning.
AttendResult attend(const TilePlan& plan, const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out,
                    const AttendOptions& options, Workspace& ws);

// What `winnow info` lists, in order of preference.
struct ExecutorInfo {
  std::string name;  // "amx_bf16"
  std::string isa;   // "AMX-BF16"
  Device device = Device::cpu;
  std::vector<DType> dtypes;  // input dtypes it takes
  std::string computes_in;    // "bf16 products, f32 sums"
  int max_head_dim = 0;
  std::vector<int> head_dims;  // those it takes, if not all up to max_head_dim
  int alignment = 1;           // bytes that addresses and strides of q, k, v and out must be multiples of
  std::string requirements;    // of the machine: "compute capability 9.0, CUDA driver 13.0 or later"; empty: see isa
  int skip_rows = 0;           // rows of one skip-softmax granule
  int skip_keys = 0;           // keys of one skip-softmax granule
  bool available = false;      // on this machine
  std::string why_not;         // what is missing, if not available
};
std::vector<ExecutorInfo> executors();

}  // namespace winnow
