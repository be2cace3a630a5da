// Relative errors and cosine: one pass over both tensors, sums in f64 in index order.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "core/numeric.h"
#include "winnow/error.h"
#include "winnow/metrics.h"

namespace winnow {

namespace {

constexpr std::int64_t kChunk = 256;  // elements widened to f64 at a time

template <class T>
void widen(const void* data, std::int64_t first, std::int64_t stride, std::int64_t n, double* out) {
  const T* p = static_cast<const T*>(data) + first;
  for (std::int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_same_v<T, double>) {
      out[i] = p[i * stride];
    } else {
      out[i] = static_cast<double>(to_f32(p[i * stride]));
    }
  }
}

void widen(const TensorView& x, std::int64_t first, std::int64_t stride, std::int64_t n, double* out) {
  switch (x.dtype) {
    case DType::f32: return widen<float>(x.data, first, stride, n, out);
    case DType::f16: return widen<f16>(x.data, first, stride, n, out);
    case DType::bf16: return widen<bf16>(x.data, first, stride, n, out);
    default: return widen<double>(x.data, first, stride, n, out);
  }
}

void check(const TensorView& value, const TensorView& reference) {
  const auto known = [](const TensorView& x) {
    const bool dtype = x.dtype == DType::f32 || x.dtype == DType::f16 || x.dtype == DType::bf16 || x.dtype == DType::f64;
    if (!dtype || x.device != Device::cpu) throw Error("metrics", "expected f32, f16, bf16 or f64 in CPU memory, got " + x.describe());
    if (x.data == nullptr && x.numel() > 0) throw Error("metrics", "expected " + x.describe() + " in memory, got a null pointer");
  };
  known(value);
  known(reference);
  const auto shape = [](const TensorView& x) { return std::span(x.shape).first(static_cast<std::size_t>(x.rank)); };
  if (!std::ranges::equal(shape(value), shape(reference))) {
    throw Error("metrics", "value: expected the reference's shape " + reference.describe() + ", got " + value.describe());
  }
}

// f(a, b) for each pair of elements, last axis fastest.
template <class F>
void for_each_pair(const TensorView& value, const TensorView& reference, F f) {
  check(value, reference);
  if (value.numel() == 0) return;
  const int last = value.rank - 1;  // -1: a scalar
  const std::int64_t inner = last < 0 ? 1 : value.size(last);
  const std::int64_t stride_a = last < 0 ? 1 : value.stride(last);
  const std::int64_t stride_b = last < 0 ? 1 : reference.stride(last);
  std::array<double, kChunk> a;
  std::array<double, kChunk> b;
  for (std::int64_t row = 0; row < value.numel() / inner; ++row) {
    std::int64_t rest = row;
    std::int64_t at_a = 0;
    std::int64_t at_b = 0;
    for (int axis = last - 1; axis >= 0; --axis) {
      at_a += rest % value.size(axis) * value.stride(axis);
      at_b += rest % value.size(axis) * reference.stride(axis);
      rest /= value.size(axis);
    }
    for (std::int64_t i = 0; i < inner; i += kChunk) {
      const std::int64_t n = std::min(kChunk, inner - i);
      widen(value, at_a + i * stride_a, stride_a, n, a.data());
      widen(reference, at_b + i * stride_b, stride_b, n, b.data());
      for (std::int64_t j = 0; j < n; ++j) f(a[static_cast<std::size_t>(j)], b[static_cast<std::size_t>(j)]);
    }
  }
}

double ratio(double error, double norm) {
  if (norm == 0.0) return error == 0.0 ? 0.0 : error * std::numeric_limits<double>::infinity();
  return error / norm;
}

}  // namespace

double rel_l1(const TensorView& value, const TensorView& reference) {
  double error = 0.0;
  double norm = 0.0;
  for_each_pair(value, reference, [&](double a, double b) {
    error += std::abs(a - b);
    norm += std::abs(b);
  });
  return ratio(error, norm);
}

double rel_l2(const TensorView& value, const TensorView& reference) {
  double error = 0.0;
  double norm = 0.0;
  for_each_pair(value, reference, [&](double a, double b) {
    error += (a - b) * (a - b);
    norm += b * b;
  });
  return ratio(std::sqrt(error), std::sqrt(norm));
}

double cosine(const TensorView& value, const TensorView& reference) {
  double dot = 0.0;
  double norm_a = 0.0;
  double norm_b = 0.0;
  for_each_pair(value, reference, [&](double a, double b) {
    dot += a * b;
    norm_a += a * a;
    norm_b += b * b;
  });
  if (norm_a == 0.0 && norm_b == 0.0) return 1.0;
  return norm_a == 0.0 || norm_b == 0.0 ? 0.0 : dot / (std::sqrt(norm_a) * std::sqrt(norm_b));
}

}  // namespace winnow
