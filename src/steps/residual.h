// What blocks add to hidden states: contiguous tensors of one dtype (f32, f16, bf16), differences in f32 and rounded once.
// Sums do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "steps/cache_track.h"
#include "winnow/tensor.h"

namespace winnow::residual {

inline constexpr std::int64_t kBlock = 1 << 15;  // elements of one partial sum
inline std::size_t partial_sums(std::int64_t elements) { return static_cast<std::size_t>((elements + kBlock - 1) / kBlock); }

void copy(const TensorView& from, const TensorView& to);
// x = x + residual
void add(const TensorView& x, const TensorView& residual);
// before = x - before. Returns whether every element of it is finite.
bool subtract(const TensorView& x, const TensorView& before, std::vector<CacheSums>& partial);
// Sums of |value - reference| and |reference|.
CacheSums compare(const TensorView& value, const TensorView& reference, std::vector<CacheSums>& partial);

}  // namespace winnow::residual
