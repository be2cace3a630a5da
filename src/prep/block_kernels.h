// The inner loops of block statistics, one set per ISA. All sets return the same bits: every sum has a fixed order
// (index order per element; 16 interleaved partial sums in exp_sum), and products are fused into it in `scores` and nowhere else.
#pragma once

#include <cstdint>
#include <vector>

#include "winnow/tensor.h"

namespace winnow {

// Row lengths of scores are padded to a multiple of this: two AVX-512 vectors.
inline constexpr std::int64_t kScorePad = 32;
inline std::int64_t padded(std::int64_t n) { return (n + kScorePad - 1) / kScorePad * kScorePad; }
// Where element d of column j lies in panels of kScorePad columns, [columns / kScorePad][D][kScorePad].
inline std::int64_t in_panels(std::int64_t j, std::int64_t d, std::int64_t D) {
  return j / kScorePad * kScorePad * D + d * kScorePad + j % kScorePad;
}

// The most terms of log_sum_exp: its logarithm is made for sums in [1, kMaxLogSumRows].
inline constexpr std::int64_t kMaxLogSumRows = 256;

struct BlockKernels {
  const char* isa;
  // out[d] = sum over t < tokens of x[row(t)*stride + d] for d < D, in order of t, where row(t) is rows[t], or t if rows is null.
  // dtype f32, f16 or bf16; strides in elements.
  void (*sum_rows)(const void* x, DType dtype, std::int64_t stride, const std::int32_t* rows, std::int64_t tokens, std::int64_t D,
                   float* out);
  // out[r][j] = scale * (sum over d of q[r][d] * k[j][d]) + bias[j] for j < columns
  // q [rows][D]   k in_panels()   bias [columns]   out [rows][ld]; columns is a multiple of kScorePad.
  void (*scores)(const float* q, std::int64_t rows, const float* k, std::int64_t columns, std::int64_t ld, std::int64_t D, float scale,
                 const float* bias, float* out);
  // Largest of x[0..n), NaN ignored; n is a multiple of 16.
  float (*max)(const float* x, std::int64_t n);
  // x[i] = exp(x[i] - shift) for i < n, and their sum; n is a multiple of 16. A NaN or infinite difference gives NaN.
  float (*exp_sum)(float* x, std::int64_t n, float shift);
  // out[d] = sum over t < tokens of x[t] / |x[t]| for x[t] = x[row(t)*stride + d] - shift[d], d < D: the sum of directions; a zero vector
  // has none and adds 0. shift and row (scratch) have room for D rounded up to 16.
  void (*sum_directions)(const void* x, DType dtype, std::int64_t stride, const std::int32_t* rows, std::int64_t tokens, std::int64_t D,
                         const float* shift, float* row, float* out);
  // out[j] = ln(sum over r < rows of exp(x[r][j])) for j < columns, a multiple of 16; x [rows][ld], rows <= kMaxLogSumRows; within 2e-6
  // of it, or of its relative rounding. NaN where an x is not finite.
  void (*log_sum_exp)(const float* x, std::int64_t rows, std::int64_t columns, std::int64_t ld, float* out);
};

const BlockKernels& block_kernels();                         // the best that this machine can run
std::vector<const BlockKernels*> available_block_kernels();  // every one that it can run, best first; for tests

// Null where the library is built without x86.
const BlockKernels* block_kernels_avx512();
const BlockKernels* block_kernels_avx2();
const BlockKernels* block_kernels_scalar();

}  // namespace winnow
