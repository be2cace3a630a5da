#include "core/finite.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "core/threads.h"

namespace winnow {

namespace {

// NaN and infinity are what has every bit of the exponent.
template <class Word>
bool all_finite(const Word* words, std::int64_t n, Word exponent) {
  constexpr std::int64_t kBlock = 1 << 16;
  std::atomic<bool> good{true};
  parallel_for((n + kBlock - 1) / kBlock, [&](std::int64_t block, int) {
    const std::int64_t end = std::min(n, (block + 1) * kBlock);
    unsigned bad = 0;  // without a branch, so that the loop becomes vector code
    for (std::int64_t i = block * kBlock; i < end; ++i) bad |= (words[i] & exponent) == exponent ? 1U : 0U;
    if (bad != 0) good.store(false, std::memory_order_relaxed);
  });
  return good;
}

}  // namespace

bool all_finite(const TensorView& x) {
  const std::int64_t n = x.numel();
  if (x.dtype == DType::f32) return all_finite(x.as<std::uint32_t>(), n, std::uint32_t{0x7F800000});
  return all_finite<std::uint16_t>(x.as<std::uint16_t>(), n, x.dtype == DType::f16 ? 0x7C00 : 0x7F80);
}

}  // namespace winnow
