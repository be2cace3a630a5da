#include "dit/ops.h"

#include <algorithm>

#include "core/threads.h"
#include "device/cpu/features.h"

namespace winnow::dit {

const RowKernels* kernels_for(Isa isa) {
  switch (isa) {
    case Isa::avx512_bf16: return cpu_features().avx512_bf16 ? avx512_bf16_kernels() : nullptr;
    case Isa::avx512: return cpu_features().avx512 ? avx512_kernels() : nullptr;
    case Isa::avx2: return cpu_features().avx2 ? avx2_kernels() : nullptr;
    case Isa::scalar: return &scalar_kernels();
  }
  return nullptr;
}

const RowKernels& best_kernels() {
  for (const Isa isa : {Isa::avx512_bf16, Isa::avx512, Isa::avx2}) {
    if (const RowKernels* kernels = kernels_for(isa)) return *kernels;
  }
  return scalar_kernels();
}

namespace {

constexpr std::int64_t kBlockElements = 1 << 14;  // per task: 32 KB of bf16, a few microseconds

// Runs body(begin, end) over [0, n) in blocks of `block`.
template <class Body>
void over_blocks(std::int64_t n, std::int64_t block, Body&& body) {
  if (n <= block) return body(std::int64_t{0}, n);
  parallel_for((n + block - 1) / block, [&](std::int64_t i, int) { body(i * block, std::min(n, (i + 1) * block)); });
}
std::int64_t rows_per_block(std::int64_t width) { return std::max<std::int64_t>(1, kBlockElements / std::max<std::int64_t>(1, width)); }

}  // namespace

void Ops::layer_norm(const TensorView& x, const TensorView& y, const RowTable& scale, const RowTable& shift, float eps) const {
  const auto kernel = kernels_->layer_norm[kernel_index(x.dtype)];
  over_blocks(x.size(0), rows_per_block(x.size(1)),
              [&](std::int64_t begin, std::int64_t end) { kernel(x.data, y.data, scale, shift, x.size(1), eps, begin, end); });
}
void Ops::norm_rope(const TensorView& x, const float* weight, const float* rope, std::int64_t head_dim, float eps) const {
  const auto kernel = kernels_->norm_rope[kernel_index(x.dtype)];
  over_blocks(x.size(0), rows_per_block(x.size(1)),
              [&](std::int64_t begin, std::int64_t end) { kernel(x.data, weight, rope, x.size(1), head_dim, eps, begin, end); });
}
void Ops::gated_add(const TensorView& x, const TensorView& y, const RowTable& gate) const {
  const auto kernel = kernels_->gated_add[kernel_index(x.dtype)];
  over_blocks(x.size(0), rows_per_block(x.size(1)),
              [&](std::int64_t begin, std::int64_t end) { kernel(x.data, y.data, gate, x.size(1), begin, end); });
}
void Ops::add(const TensorView& x, const TensorView& y) const {
  const auto kernel = kernels_->add[kernel_index(x.dtype)];
  over_blocks(x.numel(), kBlockElements, [&](std::int64_t begin, std::int64_t end) { kernel(x.data, y.data, begin, end); });
}
void Ops::gelu_tanh(const TensorView& x) const {
  const auto kernel = kernels_->gelu_tanh[kernel_index(x.dtype)];
  over_blocks(x.numel(), kBlockElements, [&](std::int64_t begin, std::int64_t end) { kernel(x.data, begin, end); });
}
void Ops::silu(const TensorView& x, const TensorView& y) const {
  const auto kernel = kernels_->silu[kernel_index(x.dtype)];
  over_blocks(x.numel(), kBlockElements, [&](std::int64_t begin, std::int64_t end) { kernel(x.data, y.data, begin, end); });
}
void Ops::guide(const TensorView& c, const TensorView& u, const TensorView& out, float g) const {
  const auto kernel = kernels_->guide[kernel_index(c.dtype)];
  over_blocks(c.numel(), kBlockElements,
              [&](std::int64_t begin, std::int64_t end) { kernel(c.data, u.data, out.as<float>(), g, begin, end); });
}

}  // namespace winnow::dit
