// How fast the matrix hardware of one thread is, measured: what kernel timings are compared with.
#pragma once

namespace winnow {

// FLOP/s of register-only loops (a multiply-add is two), the best of three runs of about 10 ms; 0 where the machine or
// the build lacks the instruction set.
double measure_amx_bf16_flops();
double measure_avx512_f32_flops();

}  // namespace winnow
