// wgmma, the warpgroup matrix product of sm_90a: 16-bit operands, f32 accumulators, m64 n{64,128} k16.
//   SS: A and B from shared memory; RS: A from registers. All shared operands use the 128-byte swizzle.
// Accumulator element of thread t (0..127) of the warpgroup: row 16*(t/32) + (t%32)/4 + 8*i, columns 8*j + 2*(t%4) + {0,1} in
// d[4*j + 2*i + {0,1}]. The A fragment of k16 step s is d[8*s .. 8*s+7] packed pairwise: scores become operands in place.
#pragma once

#include <cstdint>

#include "exec/cuda/ptx.cuh"

namespace winnow::sm90 {

// Orders register writes before the wgmmas that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Returns when at most kPending committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The compiler takes accumulators to be ready where the wgmma is issued. Pinning them after the wait stops it from
// moving their uses above the wait.
template <int kN>
__device__ __forceinline__ void pin(float (&d)[kN]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Shared-memory matrix descriptor, 128-byte swizzle. Byte distances: `lead` between 64-element column slabs of an MN-major
// operand (ignored when K-major), `stride` between groups of 8 rows. `address` of a 1024-byte aligned slab plus a row or
// 32-byte column step.
__device__ __forceinline__ std::uint64_t matrix_descriptor(std::uint32_t address, int lead, int stride) {
  return static_cast<std::uint64_t>((address & 0x3FFFF) >> 4) | static_cast<std::uint64_t>(lead >> 4) << 16 |
         static_cast<std::uint64_t>(stride >> 4) << 32 | std::uint64_t{1} << 62;
}

// D (+)= A B^T with K-major A and B (Q K^T), accumulating unless kZero.  D += A B with A in registers and MN-major B (P V).
template <class T, int kN>
struct Wgmma;

// The operands of an asm statement begin with the accumulators d[0], d[1] ...: %0, %1 ...
#define WINNOW_D8(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define WINNOW_D32 WINNOW_D8(0), WINNOW_D8(8), WINNOW_D8(16), WINNOW_D8(24)
#define WINNOW_D64 WINNOW_D32, WINNOW_D8(32), WINNOW_D8(40), WINNOW_D8(48), WINNOW_D8(56)
#define WINNOW_NAMES_D32                                                                                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, " \
  "%26, %27, %28, %29, %30, %31"
#define WINNOW_NAMES_D64                                                                                   \
  WINNOW_NAMES_D32                                                                                         \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define WINNOW_WGMMA_ASM(SHAPE, TYPE, NAMES, ADD, REST) \
  "{ .reg .pred p; setp.ne.b32 p, " ADD ", 0; wgmma.mma_async.sync.aligned." SHAPE ".f32." TYPE "." TYPE " {" NAMES "}, " REST "; }"

#define WINNOW_WGMMA(T, TYPE)                                                                                               \
  template <>                                                                                                               \
  struct Wgmma<T, 64> {                                                                                                     \
    template <bool kZero>                                                                                                   \
    __device__ __forceinline__ static void ss(float (&d)[32], std::uint64_t a, std::uint64_t b) {                           \
      asm volatile(WINNOW_WGMMA_ASM("m64n64k16", TYPE, WINNOW_NAMES_D32, "%34", "%32, %33, p, 1, 1, 0, 0")                  \
                   : WINNOW_D32                                                                                             \
                   : "l"(a), "l"(b), "n"(kZero ? 0 : 1));                                                                   \
    }                                                                                                                       \
    template <bool kZero, bool kTransposeB>                                                                                 \
    __device__ __forceinline__ static void rs(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b) {               \
      asm volatile(WINNOW_WGMMA_ASM("m64n64k16", TYPE, WINNOW_NAMES_D32, "%37", "{%32, %33, %34, %35}, %36, p, 1, 1, %38")  \
                   : WINNOW_D32                                                                                             \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kZero ? 0 : 1), "n"(kTransposeB ? 1 : 0));     \
    }                                                                                                                       \
  };                                                                                                                        \
  template <>                                                                                                               \
  struct Wgmma<T, 128> {                                                                                                    \
    template <bool kZero>                                                                                                   \
    __device__ __forceinline__ static void ss(float (&d)[64], std::uint64_t a, std::uint64_t b) {                           \
      asm volatile(WINNOW_WGMMA_ASM("m64n128k16", TYPE, WINNOW_NAMES_D64, "%66", "%64, %65, p, 1, 1, 0, 0")                 \
                   : WINNOW_D64                                                                                             \
                   : "l"(a), "l"(b), "n"(kZero ? 0 : 1));                                                                   \
    }                                                                                                                       \
    template <bool kZero, bool kTransposeB>                                                                                 \
    __device__ __forceinline__ static void rs(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b) {               \
      asm volatile(WINNOW_WGMMA_ASM("m64n128k16", TYPE, WINNOW_NAMES_D64, "%69", "{%64, %65, %66, %67}, %68, p, 1, 1, %70") \
                   : WINNOW_D64                                                                                             \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kZero ? 0 : 1), "n"(kTransposeB ? 1 : 0));     \
    }                                                                                                                       \
  };

WINNOW_WGMMA(__nv_bfloat16, "bf16")
WINNOW_WGMMA(__half, "f16")

#undef WINNOW_WGMMA
#undef WINNOW_WGMMA_ASM
#undef WINNOW_NAMES_D64
#undef WINNOW_NAMES_D32
#undef WINNOW_D64
#undef WINNOW_D32
#undef WINNOW_D8

}  // namespace winnow::sm90
