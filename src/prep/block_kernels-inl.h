// The loops of block_kernels.h, compiled once per ISA. The including file has defined `vec` as the ISA's vocabulary and
// WINNOW_BLOCK_ISA as its name. No function with external linkage and no std:: template may be used here: the linker could keep
// this file's wide version for everybody.
#include <cstdint>

#include "prep/block_kernels.h"

namespace winnow {
namespace {

using vec::V;
constexpr std::int64_t L = vec::kLanes;
constexpr int kPartials = 16;  // interleaved sums of exp_sum, on every ISA

struct F32 {
  using Raw = float;
  static V load(const Raw* p) { return vec::load(p); }
};
struct F16 {
  using Raw = std::uint16_t;
  static V load(const Raw* p) { return vec::load_f16(p); }
};
struct Bf16 {
  using Raw = std::uint16_t;
  static V load(const Raw* p) { return vec::load_bf16(p); }
};

std::int64_t row_of(const std::int32_t* rows, std::int64_t t) { return rows != nullptr ? rows[t] : t; }

// Sums of N vectors side by side: enough independent chains to hide the latency of an addition.
template <class T, int N>
void sum_columns(const typename T::Raw* x, std::int64_t stride, const std::int32_t* rows, std::int64_t tokens, float* out) {
  V acc[N];
  for (int i = 0; i < N; ++i) acc[i] = vec::zero();
  for (std::int64_t t = 0; t < tokens; ++t) {
    const typename T::Raw* row = x + row_of(rows, t) * stride;
    if (rows == nullptr) {
      constexpr std::int64_t kAhead = 16;  // tokens, so also those of the next block; past the end nothing happens
      const auto* ahead = reinterpret_cast<const char*>(row + kAhead * stride);
      for (int at = 0; at < N * L * static_cast<int>(sizeof(*row)); at += 64) __builtin_prefetch(ahead + at);
    }
    for (int i = 0; i < N; ++i) acc[i] = vec::add(acc[i], T::load(row + i * L));
  }
  for (int i = 0; i < N; ++i) vec::store(out + i * L, acc[i]);
}

template <class T>
void sum_rows_as(const void* data, std::int64_t stride, const std::int32_t* rows, std::int64_t tokens, std::int64_t D, float* out) {
  const auto* x = static_cast<const typename T::Raw*>(data);
  std::int64_t d = 0;
  for (; d + 8 * L <= D; d += 8 * L) sum_columns<T, 8>(x + d, stride, rows, tokens, out + d);
  for (; d + L <= D; d += L) sum_columns<T, 1>(x + d, stride, rows, tokens, out + d);
  if (d == D) return;
  typename T::Raw row[L] = {};  // the last D % L elements, padded
  float sum[L];
  V acc = vec::zero();
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t i = d; i < D; ++i) row[i - d] = x[row_of(rows, t) * stride + i];
    acc = vec::add(acc, T::load(row));
  }
  vec::store(sum, acc);
  for (std::int64_t i = d; i < D; ++i) out[i] = sum[i - d];
}

void sum_rows(const void* x, DType dtype, std::int64_t stride, const std::int32_t* rows, std::int64_t tokens, std::int64_t D, float* out) {
  if (dtype == DType::f32) return sum_rows_as<F32>(x, stride, rows, tokens, D, out);
  if (dtype == DType::f16) return sum_rows_as<F16>(x, stride, rows, tokens, D, out);
  return sum_rows_as<Bf16>(x, stride, rows, tokens, D, out);
}

// R rows by two vectors of columns of a panel.
template <int R>
void score_block(const float* q, const float* k, std::int64_t ld, std::int64_t D, float scale, const float* bias, float* out) {
  V acc[R][2];
  for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = vec::zero();
  for (std::int64_t d = 0; d < D; ++d) {
    const V k0 = vec::load(k + d * kScorePad);
    const V k1 = vec::load(k + d * kScorePad + L);
#pragma GCC unroll 8  // the accumulators stay in registers
    for (int r = 0; r < R; ++r) {
      const V x = vec::set(q[r * D + d]);
      acc[r][0] = vec::fused(x, k0, acc[r][0]);
      acc[r][1] = vec::fused(x, k1, acc[r][1]);
    }
  }
  const V s = vec::set(scale);
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < 2; ++i) vec::store(out + r * ld + i * L, vec::add(vec::mul(acc[r][i], s), vec::load(bias + i * L)));
  }
}

void scores(const float* q, std::int64_t rows, const float* k, std::int64_t columns, std::int64_t ld, std::int64_t D, float scale,
            const float* bias, float* out) {
  constexpr int kRows = L == 16 ? 8 : 4;  // two accumulators each: what the register file holds
  for (std::int64_t j = 0; j < columns; j += 2 * L) {
    const float* const panel = k + j / kScorePad * kScorePad * D + j % kScorePad;
    std::int64_t r = 0;
    for (; r + kRows <= rows; r += kRows) score_block<kRows>(q + r * D, panel, ld, D, scale, bias + j, out + r * ld + j);
    for (; r + 4 <= rows; r += 4) score_block<4>(q + r * D, panel, ld, D, scale, bias + j, out + r * ld + j);
    for (; r < rows; ++r) score_block<1>(q + r * D, panel, ld, D, scale, bias + j, out + r * ld + j);
  }
}

float max(const float* x, std::int64_t n) {
  V m = vec::set(-3.402823466e38F);
  for (std::int64_t i = 0; i < n; i += L) m = vec::max(vec::load(x + i), m);  // the accumulator wins over NaN
  return vec::max_lane(m);
}

// exp(x) for x <= 0 by 2^n * e^r with |r| <= ln2/2 and the Taylor series to r^7 (error < 6e-9); below -104 it is 0 in f32.
V exp(V x) {
  const V clamped = vec::max(x, vec::set(-104.0F));
  const V n = vec::round(vec::mul(clamped, vec::set(1.44269504F)));
  // ln2 in two parts, the first with 9 bits so that n times it is exact
  const V r = vec::sub(vec::sub(clamped, vec::mul(n, vec::set(0.693359375F))), vec::mul(n, vec::set(-2.12194440e-4F)));
  V p = vec::set(1.0F / 5040);
  p = vec::add(vec::mul(p, r), vec::set(1.0F / 720));
  p = vec::add(vec::mul(p, r), vec::set(1.0F / 120));
  p = vec::add(vec::mul(p, r), vec::set(1.0F / 24));
  p = vec::add(vec::mul(p, r), vec::set(1.0F / 6));
  p = vec::add(vec::mul(p, r), vec::set(0.5F));
  p = vec::add(vec::mul(p, r), vec::set(1.0F));
  p = vec::add(vec::mul(p, r), vec::set(1.0F));
  return vec::add(vec::scale2(p, n), vec::mul(x, vec::zero()));  // 0 * x: NaN and infinities become NaN
}

float exp_sum(float* x, std::int64_t n, float shift) {
  constexpr int kVectors = kPartials / vec::kLanes;
  const V s = vec::set(shift);
  V acc[kVectors];
  for (int i = 0; i < kVectors; ++i) acc[i] = vec::zero();
  for (std::int64_t j = 0; j < n; j += kPartials) {
    for (int i = 0; i < kVectors; ++i) {
      const V e = exp(vec::sub(vec::load(x + j + i * L), s));
      vec::store(x + j + i * L, e);
      acc[i] = vec::add(acc[i], e);
    }
  }
  float partial[kPartials];
  for (int i = 0; i < kVectors; ++i) vec::store(partial + i * L, acc[i]);
  float sum = 0.0F;
  for (const float p : partial) sum += p;
  return sum;
}

// The sum of interleaved partial sums, in pairs.
float sum_in_pairs(float* partial) {
  for (int half = kPartials / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) partial[i] += partial[i + half];
  }
  return partial[0];
}

// 1 / |x| from |x|^2; 0 for the zero vector.
float inverse_length(float square) { return square == 0.0F ? 0.0F : 1.0F / __builtin_sqrtf(square); }

// row[d] -= shift[d]; their sum of squares.
float shifted_square(float* row, const float* shift, std::int64_t n) {
  constexpr int kVectors = kPartials / vec::kLanes;
  V acc[kVectors];
  for (int i = 0; i < kVectors; ++i) acc[i] = vec::zero();
  for (std::int64_t d = 0; d < n; d += kPartials) {
    for (int i = 0; i < kVectors; ++i) {
      const V x = vec::sub(vec::load(row + d + i * L), vec::load(shift + d + i * L));
      vec::store(row + d + i * L, x);
      acc[i] = vec::add(acc[i], vec::mul(x, x));
    }
  }
  float partial[kPartials];
  for (int i = 0; i < kVectors; ++i) vec::store(partial + i * L, acc[i]);
  return sum_in_pairs(partial);
}

// sum_directions for rows of N vectors, in registers.
template <class T, int N>
void sum_short_directions(const void* data, std::int64_t stride, const std::int32_t* rows, std::int64_t tokens, const float* shift,
                          float* out) {
  constexpr int kVectors = kPartials / vec::kLanes;
  const auto* x = static_cast<const typename T::Raw*>(data);
  V total[N];
  for (int i = 0; i < N; ++i) total[i] = vec::zero();
  for (std::int64_t t = 0; t < tokens; ++t) {
    const typename T::Raw* from = x + row_of(rows, t) * stride;
    V row[N];
    V acc[kVectors];
    for (int i = 0; i < kVectors; ++i) acc[i] = vec::zero();
    for (int i = 0; i < N; ++i) {
      row[i] = vec::sub(T::load(from + i * L), vec::load(shift + i * L));
      acc[i % kVectors] = vec::add(acc[i % kVectors], vec::mul(row[i], row[i]));
    }
    float partial[kPartials];
    for (int i = 0; i < kVectors; ++i) vec::store(partial + i * L, acc[i]);
    const V s = vec::set(inverse_length(sum_in_pairs(partial)));
    for (int i = 0; i < N; ++i) total[i] = vec::add(total[i], vec::mul(row[i], s));
  }
  for (int i = 0; i < N; ++i) vec::store(out + i * L, total[i]);
}

// True if D is one of the head sizes that have their own code.
template <class T>
bool sum_directions_of(const void* x, std::int64_t stride, const std::int32_t* rows, std::int64_t tokens, std::int64_t D,
                       const float* shift, float* out) {
  if constexpr (L > 1) {
    if (D == 64) sum_short_directions<T, 64 / L>(x, stride, rows, tokens, shift, out);
    if (D == 128) sum_short_directions<T, 128 / L>(x, stride, rows, tokens, shift, out);
    return D == 64 || D == 128;
  }
  return false;
}

void sum_directions(const void* x, DType dtype, std::int64_t stride, const std::int32_t* rows, std::int64_t tokens, std::int64_t D,
                    const float* shift, float* row, float* out) {
  if (dtype == DType::f32 && sum_directions_of<F32>(x, stride, rows, tokens, D, shift, out)) return;
  if (dtype == DType::f16 && sum_directions_of<F16>(x, stride, rows, tokens, D, shift, out)) return;
  if (dtype == DType::bf16 && sum_directions_of<Bf16>(x, stride, rows, tokens, D, shift, out)) return;
  const std::int64_t n = (D + kPartials - 1) / kPartials * kPartials;
  const std::int64_t bytes = stride * (dtype == DType::f32 ? 4 : 2);
  for (std::int64_t d = 0; d < D; ++d) out[d] = 0.0F;
  for (std::int64_t t = 0; t < tokens; ++t) {
    sum_rows(static_cast<const char*>(x) + row_of(rows, t) * bytes, dtype, stride, nullptr, 1, D, row);
    for (std::int64_t d = D; d < n; ++d) row[d] = shift[d];
    const float square = shifted_square(row, shift, n);
    const float inverse = inverse_length(square);
    const V s = vec::set(inverse);
    std::int64_t d = 0;
    for (; d + L <= D; d += L) vec::store(out + d, vec::add(vec::load(out + d), vec::mul(vec::load(row + d), s)));
    for (; d < D; ++d) out[d] += row[d] * inverse;
  }
}

// ln(x) for x in [1, 256]: 8 ln(z) with z = x^(1/8) <= 2, and ln(z) = 2 atanh(t), t = (z-1)/(z+1) <= 1/3, as its series to t^15
// (error 2 t^17 / 17 < 1e-9). NaN stays NaN.
V log(V x) {
  const V one = vec::set(1.0F);
  const V z = vec::sqrt(vec::sqrt(vec::sqrt(x)));
  const V t = vec::div(vec::sub(z, one), vec::add(z, one));
  const V t2 = vec::mul(t, t);
  V p = vec::set(1.0F / 15);
  p = vec::add(vec::mul(p, t2), vec::set(1.0F / 13));
  p = vec::add(vec::mul(p, t2), vec::set(1.0F / 11));
  p = vec::add(vec::mul(p, t2), vec::set(1.0F / 9));
  p = vec::add(vec::mul(p, t2), vec::set(1.0F / 7));
  p = vec::add(vec::mul(p, t2), vec::set(1.0F / 5));
  p = vec::add(vec::mul(p, t2), vec::set(1.0F / 3));
  p = vec::add(vec::mul(p, t2), one);
  return vec::mul(vec::mul(p, t), vec::set(16.0F));
}

void log_sum_exp(const float* x, std::int64_t rows, std::int64_t columns, std::int64_t ld, float* out) {
  for (std::int64_t j = 0; j < columns; j += L) {
    V m = vec::set(-3.402823466e38F);
    for (std::int64_t r = 0; r < rows; ++r) m = vec::max(vec::load(x + r * ld + j), m);  // the accumulator wins over NaN
    V sum = vec::zero();
    for (std::int64_t r = 0; r < rows; ++r) sum = vec::add(sum, exp(vec::sub(vec::load(x + r * ld + j), m)));
    vec::store(out + j, vec::add(m, log(sum)));
  }
}

constexpr BlockKernels kKernels{WINNOW_BLOCK_ISA, sum_rows, scores, max, exp_sum, sum_directions, log_sum_exp};

}  // namespace
}  // namespace winnow
