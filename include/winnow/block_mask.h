// Block masks of other libraries as plans, so that any program can be the selector.
#pragma once

#include <string>

#include "winnow/plan.h"
#include "winnow/tensor.h"

namespace winnow {

class Workspace;

// Which blocks of a [Sq,Sk] attention matrix are computed. Block (i,j) is queries [i*block_q, (i+1)*block_q) and keys
// [j*block_k, (j+1)*block_k), both in the order of the sequence; the last ones may be short.
struct BlockMask {
  // [Gq,Gk], [H,Gq,Gk] or [B,H,Gq,Gk] with Gq = ceil(Sq / block_q) and Gk = ceil(Sk / block_k), bool or u8 with values 0 and 1,
  // 1 = computed, any strides. H and B may be 1: the same for all.
  TensorView keep = {};
  int block_q = 0;
  int block_k = 0;
};

// The plan that computes what the mask keeps, no more and no less. `geometry` has no layouts, and tiles whose sizes divide the
// blocks': mask_tile() finds them. Key tiles past geometry.key_lengths are left out. A row of blocks with nothing kept
// gives O = 0. Memory from `ws`, or owned by the plan if null. Throws Error naming what does not fit.
TilePlan plan_from_block_mask(const BlockMask& mask, PlanGeometry geometry, Skipped skipped = Skipped::drop, Workspace* ws = nullptr);

// The tile size for blocks of `block`: `preferred`, the executors' (128 queries, 64 keys), if it divides the block, else the block.
// Executors on the CPU take any size.
inline int mask_tile(int block, int preferred) { return block % preferred == 0 ? preferred : block; }

// A mask that owns its memory.
struct LoadedBlockMask {
  Tensor memory;
  BlockMask mask;
};

// Reads a mask from NumPy's .npy (bool or uint8, C order), or from a safetensors file with the tensor "mask" (BOOL or U8) and
// optional metadata "block_q" and "block_k". Sizes of 0 are taken from the file. Throws Error naming the file if it breaks
// a rule of docs/plan-format.md, states other sizes, or if nobody states them.
LoadedBlockMask load_block_mask(const std::string& path, int block_q = 0, int block_k = 0);

}  // namespace winnow
