// Row operations of the transformer between its linear layers, compiled once per instruction set and chosen at run time.
// Activations T are f32 or bf16 (as uint16 bits). Arithmetic is f32; results round once to T.
#pragma once

#include <cstdint>

#include "winnow/tensor.h"

namespace winnow::dit {

enum class Isa : std::uint8_t { scalar, avx2, avx512, avx512_bf16 };

// Per-row parameters: row r uses table + index[r] * stride, or the table itself if index is null (one entry for all rows).
struct RowTable {
  const float* table = nullptr;
  std::int64_t stride = 0;
  const std::int32_t* index = nullptr;
  RowTable from(std::int64_t row) const { return {table, stride, index == nullptr ? nullptr : index + row}; }
};

// Kernels over contiguous [rows, width] arrays or `count` elements. No kernel keeps state; all are safe to call in parallel.
struct RowKernels {
  const char* isa;
  // y = LN(x) * scale + shift, LN with biased variance and eps. x and y are T; they may be the same.
  void (*layer_norm[2])(const void* x, void* y, RowTable scale, RowTable shift, std::int64_t width, float eps, std::int64_t rows);
  // x += y * gate (no gate: x += y), rounded; then y = LN(x) * scale + shift as above.
  void (*add_norm[2])(void* x, void* y, RowTable gate, RowTable scale, RowTable shift, std::int64_t width, float eps, std::int64_t rows);
  // x = x / sqrt(mean x^2 + eps) * weight in place, rounded; then, if rope is not null, per head of head_dim elements
  // each pair is turned by the angle of rope [rows, head_dim] (see rope.h), and rounded again.
  void (*norm_rope[2])(void* x, const float* weight, const float* rope, std::int64_t width, std::int64_t head_dim, float eps,
                       std::int64_t rows);
  // x += y * gate
  void (*gated_add[2])(void* x, const void* y, RowTable gate, std::int64_t width, std::int64_t rows);
  void (*gelu_tanh[2])(void* x, std::int64_t count);            // x = gelu(x), tanh form
  void (*silu[2])(const void* x, void* y, std::int64_t count);  // y = x / (1 + exp(-x))
  // out = u + g * (c - u) in f32. For T = bf16 each of the three operations rounds to bf16, as on bf16 tensors.
  void (*guide[2])(const void* c, const void* u, float* out, float g, std::int64_t count);
};
inline int kernel_index(DType dtype) { return dtype == DType::bf16 ? 1 : 0; }

const RowKernels* avx512_bf16_kernels();  // null if not built
const RowKernels* avx512_kernels();
const RowKernels* avx2_kernels();
const RowKernels& scalar_kernels();
// Null if this build or this processor lacks it.
const RowKernels* kernels_for(Isa isa);
// The best that this processor has.
const RowKernels& best_kernels();

// The operations over whole tensors, in parallel over blocks of rows unless called from inside a parallel region. Views are
// contiguous; shapes are the caller's business.
class Ops {
 public:
  explicit Ops(const RowKernels& kernels = best_kernels()) : kernels_(&kernels) {}
  const char* isa() const { return kernels_->isa; }
  void layer_norm(const TensorView& x, const TensorView& y, const RowTable& scale, const RowTable& shift, float eps) const;
  void add_norm(const TensorView& x, const TensorView& y, const RowTable& gate, const RowTable& scale, const RowTable& shift,
                float eps) const;
  void norm_rope(const TensorView& x, const float* weight, const float* rope, std::int64_t head_dim, float eps) const;
  void gated_add(const TensorView& x, const TensorView& y, const RowTable& gate) const;
  void gelu_tanh(const TensorView& x) const;
  void silu(const TensorView& x, const TensorView& y) const;
  void guide(const TensorView& c, const TensorView& u, const TensorView& out, float g) const;

 private:
  const RowKernels* kernels_;
};

}  // namespace winnow::dit
