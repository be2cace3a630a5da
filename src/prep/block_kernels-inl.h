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

// Sums of N vectors side by side: enough independent chains to hide the latency of an addition.
template <class T, int N>
void sum_columns(const typename T::Raw* x, std::int64_t stride, std::int64_t tokens, float* out) {
  V acc[N];
  for (int i = 0; i < N; ++i) acc[i] = vec::zero();
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (int i = 0; i < N; ++i) acc[i] = vec::add(acc[i], T::load(x + t * stride + i * L));
  }
  for (int i = 0; i < N; ++i) vec::store(out + i * L, acc[i]);
}

template <class T>
void sum_rows_as(const void* data, std::int64_t stride, std::int64_t tokens, std::int64_t D, float* out) {
  const auto* x = static_cast<const typename T::Raw*>(data);
  std::int64_t d = 0;
  for (; d + 8 * L <= D; d += 8 * L) sum_columns<T, 8>(x + d, stride, tokens, out + d);
  for (; d + L <= D; d += L) sum_columns<T, 1>(x + d, stride, tokens, out + d);
  if (d == D) return;
  typename T::Raw row[L] = {};  // the last D % L elements, padded
  float sum[L];
  V acc = vec::zero();
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t i = d; i < D; ++i) row[i - d] = x[t * stride + i];
    acc = vec::add(acc, T::load(row));
  }
  vec::store(sum, acc);
  for (std::int64_t i = d; i < D; ++i) out[i] = sum[i - d];
}

void sum_rows(const void* x, DType dtype, std::int64_t stride, std::int64_t tokens, std::int64_t D, float* out) {
  if (dtype == DType::f32) return sum_rows_as<F32>(x, stride, tokens, D, out);
  if (dtype == DType::f16) return sum_rows_as<F16>(x, stride, tokens, D, out);
  return sum_rows_as<Bf16>(x, stride, tokens, D, out);
}

// R rows by two vectors of columns.
template <int R>
void score_block(const float* q, const float* kt, std::int64_t ld, std::int64_t D, float scale, const float* bias, float* out) {
  V acc[R][2];
  for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = vec::zero();
  for (std::int64_t d = 0; d < D; ++d) {
    const V k0 = vec::load(kt + d * ld);
    const V k1 = vec::load(kt + d * ld + L);
    for (int r = 0; r < R; ++r) {
      const V x = vec::set(q[r * D + d]);
      acc[r][0] = vec::add(acc[r][0], vec::mul(x, k0));
      acc[r][1] = vec::add(acc[r][1], vec::mul(x, k1));
    }
  }
  const V s = vec::set(scale);
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < 2; ++i) vec::store(out + r * ld + i * L, vec::add(vec::mul(acc[r][i], s), vec::load(bias + i * L)));
  }
}

void scores(const float* q, std::int64_t rows, const float* kt, std::int64_t ld, std::int64_t D, float scale, const float* bias,
            float* out) {
  for (std::int64_t j = 0; j < ld; j += 2 * L) {
    std::int64_t r = 0;
    for (; r + 4 <= rows; r += 4) score_block<4>(q + r * D, kt + j, ld, D, scale, bias + j, out + r * ld + j);
    for (; r < rows; ++r) score_block<1>(q + r * D, kt + j, ld, D, scale, bias + j, out + r * ld + j);
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

constexpr BlockKernels kKernels{WINNOW_BLOCK_ISA, sum_rows, scores, max, exp_sum};

}  // namespace
}  // namespace winnow
