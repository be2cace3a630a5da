// The sm_90a instructions that the attention kernels are written in: mbarrier, tensor copies (TMA), named barriers,
// register reallocation, matrix store. One function per instruction; no policy. wgmma is in wgmma.cuh.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "exec/cuda/device_math.cuh"

namespace winnow::sm90 {

using cuda::ex2, cuda::kInf, cuda::kMeanLog2, cuda::ldmatrix_x4, cuda::lg2, cuda::max_nan, cuda::pack, cuda::quad_sum, cuda::reciprocal,
    cuda::round_to_bf16, cuda::smem_address;

// True in exactly one lane of a converged warp.
__device__ __forceinline__ bool elect_one() {
  std::uint32_t elected;
  asm volatile("{\n .reg .pred p;\n elect.sync _|p, 0xffffffff;\n selp.u32 %0, 1, 0, p;\n}\n" : "=r"(elected));
  return elected != 0;
}

// ---- mbarrier -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void mbarrier_init(std::uint64_t* barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void mbarrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_address(barrier)) : "memory");
}

// Arrives and announces `bytes` that copies will deliver to this phase.
__device__ __forceinline__ void mbarrier_arrive_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(barrier)), "r"(bytes) : "memory");
}

// Returns once the phase of the given parity has completed.
__device__ __forceinline__ void mbarrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      " .reg .pred done;\n"
      "again_%=:\n"
      " mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      " @done bra.uni ready_%=;\n"
      " bra.uni again_%=;\n"
      "ready_%=:\n"
      "}\n" ::"r"(smem_address(barrier)),
      "r"(parity)
      : "memory");
}

// Whether it has.
__device__ __forceinline__ bool mbarrier_test(std::uint64_t* barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile("{\n .reg .pred p;\n mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}\n"
               : "=r"(done)
               : "r"(smem_address(barrier)), "r"(parity)
               : "memory");
  return done != 0;
}

// Arrives on the same variable in a CTA of the cluster. Orders no memory by itself: with .release.cluster it would be preceded
// by a fence of the whole device, which made a kernel that gives back tiles this way a third slower. A tile's readers have
// waited for their wgmmas, and nothing was written.
__device__ __forceinline__ void mbarrier_arrive_cluster(std::uint64_t* barrier, std::uint32_t cta) {
  asm volatile(
      "{\n .reg .b32 there;\n mapa.shared::cluster.u32 there, %0, %1;\n mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(
          smem_address(barrier)),
      "r"(cta)
      : "memory");
}

// For the long waits of a warp that nobody waits for: asks rarely, because the others lack what it issues.
__device__ __forceinline__ void mbarrier_wait_idle(std::uint64_t* barrier, std::uint32_t parity) {
  while (!mbarrier_test(barrier, parity)) __nanosleep(256);
}

// ---- clusters -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ int cluster_rank() {
  int r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
// Every thread of every CTA of the cluster.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// ---- named barriers -------------------------------------------------------------------------------------------------
// `id` 1..15 (0 is __syncthreads), `threads` counts those that wait and those that only arrive. With an id in a register
// ptxas reserves all 16 barriers: no loss to a kernel that runs one CTA per SM.

__device__ __forceinline__ void bar_sync(int id, int threads) {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void bar_arrive(int id, int threads) {
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// bar_sync() that tells whether `mine` is true in all threads.
__device__ __forceinline__ bool bar_all(int id, int threads, bool mine) {
  std::uint32_t all;
  asm volatile(
      "{\n .reg .pred mine, all;\n setp.ne.u32 mine, %3, 0;\n barrier.cta.red.and.pred.aligned all, %1, %2, mine;\n"
      " selp.u32 %0, 1, 0, all;\n}\n"
      : "=r"(all)
      : "r"(id), "r"(threads), "r"(static_cast<std::uint32_t>(mine))
      : "memory");
  return all != 0;
}

// ---- registers ------------------------------------------------------------------------------------------------------

template <int kRegisters>
__device__ __forceinline__ void registers_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void registers_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- tensor copies --------------------------------------------------------------------------------------------------

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// L2 priorities: K and V are read by every query tile of a head, Q and O once. The values that createpolicy.fractional gives
// for the whole of an access; as constants they hold no registers.
inline constexpr std::uint64_t kEvictLast = 0x14F0000000000000;
inline constexpr std::uint64_t kEvictFirst = 0x12F0000000000000;

// Box at element coordinates (d, token, head, batch) of a [B,S,H,D] map -> shared memory. Rows outside the tensor are zeros.
__device__ __forceinline__ void tma_load(void* to, const CUtensorMap* map, std::uint64_t* barrier, int d, int token, int head, int batch,
                                         std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(smem_address(to)),
      "l"(map), "r"(smem_address(barrier)), "r"(d), "r"(token), "r"(head), "r"(batch), "l"(policy)
      : "memory");
}

// A box into the same place of every CTA in `ctas` (a bit each), completing on each one's own barrier.
__device__ __forceinline__ void tma_load_multicast(void* to, const CUtensorMap* map, std::uint64_t* barrier, int d, int token, int head,
                                                   int batch, std::uint16_t ctas, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;" ::"r"(smem_address(to)),
      "l"(map), "r"(smem_address(barrier)), "r"(d), "r"(token), "r"(head), "r"(batch), "h"(ctas), "l"(policy)
      : "memory");
}

// Shared memory -> box. Rows outside the tensor are not written.
__device__ __forceinline__ void tma_store(const CUtensorMap* map, const void* from, int d, int token, int head, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(smem_address(from)), "r"(d), "r"(token), "r"(head), "r"(batch)
               : "memory");
}
__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// The sources of all committed stores may be overwritten.
__device__ __forceinline__ void tma_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// All committed stores are done.
__device__ __forceinline__ void tma_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Ordinary stores to shared memory before it are seen by copies and wgmma after it.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- matrix fragments -----------------------------------------------------------------------------------------------

__device__ __forceinline__ void stmatrix_x4(std::uint32_t address, std::uint32_t r0, std::uint32_t r1, std::uint32_t r2, std::uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

}  // namespace winnow::sm90
