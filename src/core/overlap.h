// Whether strided views share memory.
#pragma once

#include "winnow/tensor.h"

namespace winnow {

// Whether every element is less than 2^62 bytes away from the first one, so that nothing below or in a kernel overflows.
bool is_addressable(const TensorView& view);

// Both views below are addressable.
// Whether some byte belongs to an element of both views. Exact: views that interleave, such as the heads of one buffer, do not
// overlap. An arrangement that needs more than a bounded search to decide, which only strides that are no multiples of each
// other can make, counts as overlapping. Views of different devices, and views without data, never do.
bool overlap(const TensorView& a, const TensorView& b);

// Whether two different elements of the view share a byte. Exact in the same sense.
bool overlaps_itself(const TensorView& view);

}  // namespace winnow
