// What the attention kernels of all GPUs share: small arithmetic, and the instructions that sm_80 has already.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace winnow::cuda {

inline constexpr float kInf = __builtin_huge_valf();
inline constexpr float kMeanLog2 = 6;  // log2 of the tokens of a virtual key, kTileK

__device__ __forceinline__ std::uint32_t smem_address(const void* p) { return static_cast<std::uint32_t>(__cvta_generic_to_shared(p)); }

// Four 8x8 matrices of 16-bit elements; lane i gives the row address of row i%8 of matrix i/8.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
// 2^x, 2 ulp; ex2(-inf) = 0. Denormal results are flushed.
__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log2(x) of x >= 0 to 2^-22, denormal ones as 0; lg2(0) = -inf.
__device__ __forceinline__ float lg2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x to 1 ulp, denormal numbers as 0. One instruction, where a division is twenty and a call.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// max(a, b), NaN if either is one: fmaxf() would lose it.
__device__ __forceinline__ float max_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// Two floats as packed 16-bit, `lo` in the low half: the order of wgmma's fragments.
template <class T>
__device__ __forceinline__ std::uint32_t pack(float lo, float hi);
template <>
__device__ __forceinline__ std::uint32_t pack<__nv_bfloat16>(float lo, float hi) {
  std::uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
template <>
__device__ __forceinline__ std::uint32_t pack<__half>(float lo, float hi) {
  std::uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

// The bf16 nearest to x.
__device__ __forceinline__ float round_to_bf16(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }

// Over the four lanes that share a row of a fragment.
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

}  // namespace winnow::cuda
