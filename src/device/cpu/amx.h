// AMX tiles: 8 registers of 16 rows x 64 bytes, numbered at compile time. Own wrappers, because a compiler's intrinsics
// do not tell the optimiser that they read and write memory.
#pragma once

#include <cstdint>

namespace winnow::amx {

inline constexpr int kTileRows = 16;
inline constexpr int kTileBytes = 1024;

// All eight registers with full extents. To be paired with release() on the same thread.
static inline void configure() {
  struct alignas(64) Config {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static constexpr Config kConfig;
  asm volatile("ldtilecfg %0" : : "m"(kConfig));
}
static inline void release() { asm volatile("tilerelease"); }

// A tile whose rows follow each other in memory.
template <int kTile>
static inline void load(const void* p) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(std::int64_t{64}), "i"(kTile) : "memory");
}
// The same for data that is used once: it is not to displace other data from the L1 cache.
template <int kTile>
static inline void load_once(const void* p) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(std::int64_t{64}), "i"(kTile) : "memory");
}
template <int kTile>
static inline void store(void* p) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(std::int64_t{64}), "i"(kTile) : "memory");
}
template <int kTile>
static inline void zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
// C[16,16] f32 += A[16,32] bf16 * B[32,16] bf16. A row-major; B in row pairs: dword (r,c) holds B[2r][c], B[2r+1][c].
// Subnormal products count as zero.
template <int kC, int kA, int kB>
static inline void dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}

}  // namespace winnow::amx
