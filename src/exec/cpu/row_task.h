// What passes between the driver (attend_cpu.cc) and the kernels, which are compiled per instruction set: plain data, so that
// no translation unit with special flags instantiates shared inline code.
#pragma once

#include <cstdint>

namespace winnow {

enum class Format : std::uint8_t { f32, bf16, f16 };

// Keys are packed and computed in units. 64: S^T of one unit and 32 queries is 8 KB, so that with K, V, P and a slice of O it
// stays in a 48 KB L1 cache; and it is the usual tile_k. A tile is cut into ceil(tile_k / 64) units.
inline constexpr int kUnitKeys = 64;
// Most queries of one work item. Longer query tiles are cut, and neighbours with equal lists are joined: a dense sweep over
// keys that exceed the L2 cache costs half as much again at 128 queries per sweep (measured at S = 4752, D = 128), and
// O (256 KB) and Q (128 KB) of 512 queries still fit.
inline constexpr int kTaskRows = 512;

// Rows of a tensor with contiguous elements in a row: numbers 0, 1, ..., or those of a list.
struct Rows {
  const void* data = nullptr;
  std::int64_t stride = 0;  // in elements
  Format format = Format::f32;
  const std::int32_t* list = nullptr;
};

// K and V of one key head, packed by the kernel for itself.
struct PackedUnits {
  const unsigned char* k = nullptr;  // [units, unit_bytes]
  const unsigned char* v = nullptr;  // [units, unit_bytes]
};

struct TileList {
  const std::int32_t* tiles = nullptr;
  std::int64_t count = 0;
};

// Online softmax state of a row, in log2 units: the weights are 2^(x - m), l is their sum, top is the true maximum of x.
// No key at all: m = top = -inf, l = 0.
struct RowState {
  float m;
  float l;
  float top;
};

// Up to kTaskRows consecutive queries against the tiles that they have in common.
struct RowTask {
  Rows q;  // [rows, D]
  int rows = 0;
  int D = 0;
  bool negate_q = false;    // the scale is negative
  float scale_log2 = 0.0F;  // |scale| log2(e)

  PackedUnits units;
  const unsigned char* unit_finite = nullptr;  // [units] 0: K has a NaN or an infinity, the unit is never skipped
  int tile_k = 64;
  std::int64_t keys = 0;                     // valid ones
  const std::int32_t* tile_begin = nullptr;  // [tiles + 1] of a layout, whose tiles may all be short; else null
  TileList lists[2];                         // refine, skim

  PackedUnits means;                        // virtual keys
  const float* mean_bias_log2 = nullptr;    // [mean_units, kUnitKeys] log2 of their keys; -inf: not for this row
  const std::int32_t* mean_list = nullptr;  // units with at least one that counts
  std::int64_t mean_count = 0;

  bool test_skip = false;
  float skip_threshold_log2 = 0.0F;
  float* skip_gaps_log2 = nullptr;  // [blocks, units] or null
  std::int64_t gaps_per_block = 0;

  unsigned char* scratch = nullptr;  // of this thread
  void* out = nullptr;               // [rows, D]
  std::int64_t out_stride = 0;
  const std::int32_t* out_list = nullptr;  // row i goes to row out_list[i], or i if null
  Format out_format = Format::f32;
  RowState* state = nullptr;  // [rows], or null
  std::int64_t tested = 0;    // results
  std::int64_t skipped = 0;
};

// One instruction set's kernels.
struct CpuKernels {
  int block;  // queries that share a skip vote
  std::int64_t (*unit_bytes)(int D);
  std::int64_t (*scratch_bytes)(int D);
  // Packs n <= kUnitKeys keys, and zeros up to kUnitKeys. pack_k returns whether all of them are finite.
  bool (*pack_k)(const Rows& k, int n, int D, unsigned char* unit);
  void (*pack_v)(const Rows& v, int n, int D, unsigned char* unit);
  // mean[d] = (1/n) sum over n rows, in f32
  void (*average)(const Rows& rows, std::int64_t n, int D, float* mean);
  void (*attend)(RowTask& task);
};

// Null if not part of this build.
const CpuKernels* amx_bf16_kernels();
const CpuKernels* avx512_f32_kernels();
const CpuKernels* avx2_f32_kernels();
const CpuKernels* scalar_f32_kernels();

}  // namespace winnow
