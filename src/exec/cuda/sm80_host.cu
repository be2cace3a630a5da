// Host side of the sm_80 attention kernel.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "exec/cuda/runtime.h"
#include "exec/cuda/sm80_launch.h"

namespace winnow::sm80 {

void launch_attend(const cuda::AttendCall& call, CUstream_st* stream) {
  const std::int64_t Gq = (call.Sq + cuda::kTileQ - 1) / cuda::kTileQ;
  const std::int64_t rows = call.B * call.H * Gq;
  if (rows == 0) return;
  KernelArgs args{};
  args.q = call.q;
  args.k = call.k;
  args.v = call.v;
  args.out = call.out;
  args.k_mean = call.k_mean;
  args.v_mean = call.v_mean;
  args.offsets = call.offsets;
  args.tiles = call.tiles;
  args.order = call.order;
  args.layout = call.layout;
  args.list_period = static_cast<int>(call.list_period != 0 ? call.list_period : rows);
  args.mean_bits = call.mean_bits;
  args.key_lengths = call.key_lengths;
  args.lse = call.lse;
  args.inv_l = call.inv_l;
  args.granules = reinterpret_cast<unsigned long long*>(call.granules);
  args.H = static_cast<int>(call.H);
  args.Hk = static_cast<int>(call.Hk);
  args.Sq = static_cast<int>(call.Sq);
  args.Sk = static_cast<int>(call.Sk);
  args.Gq = static_cast<int>(Gq);
  args.mean_words = static_cast<int>(cuda::mean_words(call.Sk));
  args.scale_log2 = static_cast<float>(call.scale * 1.4426950408889634);
  args.skip_below = call.skip_threshold_log2 / args.scale_log2;
  const auto run = call.operand == cuda::Operand::bf16 ? (call.D == 64 ? launch<__nv_bfloat16, 64> : launch<__nv_bfloat16, 128>)
                                                       : (call.D == 64 ? launch<__half, 64> : launch<__half, 128>);
  cuda::check(run(args, static_cast<unsigned>(rows), stream), "attend", "launch");
}

}  // namespace winnow::sm80
