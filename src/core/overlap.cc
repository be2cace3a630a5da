// Both questions are one: does a bounded integer combination of strides fall into a window?
//   sum of c[i] * x[i] in [low, high], 0 <= x[i] <= n[i]
// With nested strides (each at least as large as everything below it together, as in every slice or permutation of a buffer) a
// window leaves one or two candidates per axis, so that the search ends after a few steps.
#include "core/overlap.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>

namespace winnow {

namespace {

// Rounded up; b > 0.
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b > 0 ? 1 : 0); }

class Search {
 public:
  // A variable in [0, n] times a coefficient of either sign.
  void add(std::int64_t coefficient, std::int64_t n) {
    if (coefficient == 0 || n <= 0) return;
    if (coefficient < 0) {  // c*x = c*n + (-c)*(n-x)
      offset_ += coefficient * n;
      coefficient = -coefficient;
    }
    const auto equal = std::find_if(terms_.begin(), terms_.begin() + size_, [&](const Term& t) { return t.coefficient == coefficient; });
    if (equal != terms_.begin() + size_) {
      equal->n += n;
      return;
    }
    terms_[size_++] = {coefficient, n, 0, 0};
  }

  // Whether the sum can lie in [low, high]; true if undecided after a bounded number of steps.
  bool reaches(std::int64_t low, std::int64_t high) {
    std::sort(terms_.begin(), terms_.begin() + size_, [](const Term& a, const Term& b) { return a.coefficient > b.coefficient; });
    std::int64_t largest = 0;
    std::int64_t divisor = 0;
    for (std::size_t i = size_; i-- > 0;) {
      largest += terms_[i].coefficient * terms_[i].n;
      divisor = std::gcd(divisor, terms_[i].coefficient);
      terms_[i].largest = largest;
      terms_[i].divisor = divisor;
    }
    return visit(0, low - offset_, high - offset_);
  }

 private:
  struct Term {
    std::int64_t coefficient;
    std::int64_t n;
    std::int64_t largest;  // of this term and all after it together
    std::int64_t divisor;  // of their coefficients
  };
  static constexpr std::size_t kMaxTerms = 2 * static_cast<std::size_t>(TensorView::kMaxRank);
  static constexpr int kMaxSteps = 20000;

  bool visit(std::size_t i, std::int64_t low, std::int64_t high) {
    if (high < 0 || (i == size_ && low > 0)) return false;
    if (low <= 0) return true;  // all zeros
    const Term& term = terms_[i];
    if (low > term.largest || ceil_div(low, term.divisor) * term.divisor > high) return false;
    if (++steps_ > kMaxSteps) return true;
    const std::int64_t rest = term.largest - term.coefficient * term.n;
    const std::int64_t first = std::max<std::int64_t>(0, ceil_div(low - rest, term.coefficient));
    const std::int64_t last = std::min(term.n, high / term.coefficient);
    for (std::int64_t x = last; x >= first; --x) {
      if (visit(i + 1, low - term.coefficient * x, high - term.coefficient * x)) return true;
    }
    return false;
  }

  std::array<Term, kMaxTerms> terms_{};
  std::size_t size_ = 0;
  std::int64_t offset_ = 0;
  int steps_ = 0;
};

std::int64_t address(const TensorView& view) { return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(view.data)); }

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// From the first to the last byte that any element touches.
Range byte_range(const TensorView& view) {
  Range range;
  range.begin = address(view);
  range.end = range.begin + static_cast<std::int64_t>(dtype_bytes(view.dtype));
  for (int axis = 0; axis < view.rank; ++axis) {
    const std::int64_t reach = (view.size(axis) - 1) * view.stride(axis) * static_cast<std::int64_t>(dtype_bytes(view.dtype));
    (reach < 0 ? range.begin : range.end) += reach;
  }
  return range;
}

}  // namespace

bool is_addressable(const TensorView& view) {
  const std::int64_t limit = (std::int64_t{1} << 62) / static_cast<std::int64_t>(dtype_bytes(view.dtype));
  std::int64_t reach = 0;
  for (int axis = 0; axis < view.rank; ++axis) {
    const std::int64_t steps = view.size(axis) - 1;
    if (steps < 1) continue;
    const std::int64_t stride = view.stride(axis);
    const std::int64_t most = (limit - reach) / steps;
    if (stride > most || stride < -most) return false;
    reach += steps * (stride < 0 ? -stride : stride);
  }
  return reach < limit;
}

bool overlap(const TensorView& a, const TensorView& b) {
  if (a.device != b.device || a.device_index != b.device_index) return false;
  if (a.data == nullptr || b.data == nullptr || a.numel() == 0 || b.numel() == 0) return false;
  const Range ra = byte_range(a);
  const Range rb = byte_range(b);
  if (ra.end <= rb.begin || rb.end <= ra.begin) return false;
  const auto bytes_a = static_cast<std::int64_t>(dtype_bytes(a.dtype));
  const auto bytes_b = static_cast<std::int64_t>(dtype_bytes(b.dtype));
  Search distance;  // from an element of b to one of a, less that of their first ones
  for (int axis = 0; axis < a.rank; ++axis) distance.add(a.stride(axis) * bytes_a, a.size(axis) - 1);
  for (int axis = 0; axis < b.rank; ++axis) distance.add(-b.stride(axis) * bytes_b, b.size(axis) - 1);
  const std::int64_t from_a_to_b = address(b) - address(a);
  return distance.reaches(from_a_to_b - bytes_a + 1, from_a_to_b + bytes_b - 1);
}

bool overlaps_itself(const TensorView& view) {
  if (view.numel() == 0) return false;
  // Two elements differ in a first axis; from one to the other it grows by at least 1, and the axes after it change at will.
  for (int first = 0; first < view.rank; ++first) {
    if (view.size(first) < 2) continue;
    Search distance;  // in elements
    distance.add(view.stride(first), view.size(first) - 2);
    for (int axis = first + 1; axis < view.rank; ++axis) {
      distance.add(view.stride(axis), view.size(axis) - 1);
      distance.add(-view.stride(axis), view.size(axis) - 1);
    }
    if (distance.reaches(-view.stride(first), -view.stride(first))) return true;
  }
  return false;
}

}  // namespace winnow
