#include "steps/residual.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/numeric.h"
#include "core/threads.h"
#include "winnow/error.h"

namespace winnow::residual {

namespace {

template <class T>
T narrow(float x) {
  if constexpr (std::is_same_v<T, bf16>) return to_bf16(x);
  if constexpr (std::is_same_v<T, f16>) return to_f16(x);
  if constexpr (std::is_same_v<T, float>) return x;
}

template <class F>
void with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f(float{});
    case DType::bf16: return f(bf16{});
    case DType::f16: return f(f16{});
    default: throw Error("cache", std::string("x: expected f32, f16 or bf16, got ") + dtype_name(dtype));
  }
}

// body(begin, end, block) over blocks of elements.
template <class Body>
void for_blocks(std::int64_t n, Body&& body) {
  parallel_for((n + kBlock - 1) / kBlock, [&](std::int64_t i, int) { body(i * kBlock, std::min(n, (i + 1) * kBlock), i); });
}

// Sums of term(i) = {change, reference}: in eight lanes, so that the loop becomes vector code, added up in a fixed order.
template <class Term>
CacheSums lanes(std::int64_t begin, std::int64_t end, Term&& term) {
  constexpr std::int64_t kLanes = 8;
  std::array<double, kLanes> change{};
  std::array<double, kLanes> reference{};
  std::int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const auto [c, r] = term(i + lane);
      change[static_cast<std::size_t>(lane)] += double{c};
      reference[static_cast<std::size_t>(lane)] += double{r};
    }
  }
  CacheSums sums;
  for (; i < end; ++i) {
    const auto [c, r] = term(i);
    sums.change += double{c};
    sums.reference += double{r};
  }
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    sums.change += change[lane];
    sums.reference += reference[lane];
  }
  return sums;
}

CacheSums total(const std::vector<CacheSums>& partial, std::size_t count) {
  CacheSums sums;
  for (std::size_t i = 0; i < count; ++i) {
    sums.change += partial[i].change;
    sums.reference += partial[i].reference;
  }
  return sums;
}

}  // namespace

void copy(const TensorView& from, const TensorView& to) {
  const auto size = static_cast<std::int64_t>(dtype_bytes(from.dtype));
  for_blocks(from.numel(), [&](std::int64_t begin, std::int64_t end, std::int64_t) {
    std::memcpy(to.as<char>() + begin * size, from.as<char>() + begin * size, static_cast<std::size_t>((end - begin) * size));
  });
}

void add(const TensorView& x, const TensorView& residual) {
  with_type(x.dtype, [&]<class T>(T) {
    T* __restrict to = x.as<T>();
    const T* __restrict from = residual.as<T>();
    for_blocks(x.numel(), [=](std::int64_t begin, std::int64_t end, std::int64_t) {
      for (std::int64_t i = begin; i < end; ++i) to[i] = narrow<T>(to_f32(to[i]) + to_f32(from[i]));
    });
  });
}

bool subtract(const TensorView& x, const TensorView& before, std::vector<CacheSums>& partial) {
  with_type(x.dtype, [&]<class T>(T) {
    const T* __restrict from = x.as<T>();
    T* __restrict to = before.as<T>();
    for_blocks(x.numel(), [&](std::int64_t begin, std::int64_t end, std::int64_t block) {
      for (std::int64_t i = begin; i < end; ++i) to[i] = narrow<T>(to_f32(from[i]) - to_f32(to[i]));
      // x - x is 0 only for finite x.
      partial[static_cast<std::size_t>(block)] = lanes(begin, end, [&](std::int64_t i) {
        const float value = to_f32(to[i]);
        return std::pair{value - value, 0.0F};
      });
    });
  });
  return total(partial, partial_sums(x.numel())).change == 0.0;
}

CacheSums compare(const TensorView& value, const TensorView& reference, std::vector<CacheSums>& partial) {
  with_type(value.dtype, [&]<class T>(T) {
    const T* a = value.as<T>();
    const T* b = reference.as<T>();
    for_blocks(value.numel(), [&](std::int64_t begin, std::int64_t end, std::int64_t block) {
      partial[static_cast<std::size_t>(block)] = lanes(begin, end, [&](std::int64_t i) {
        return std::pair{std::abs(to_f32(a[i]) - to_f32(b[i])), std::abs(to_f32(b[i]))};
      });
    });
  });
  return total(partial, partial_sums(value.numel()));
}

}  // namespace winnow::residual
