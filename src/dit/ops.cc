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
std::byte* at(const TensorView& view, std::int64_t element) {
  return view.as<std::byte>() + static_cast<std::size_t>(element) * dtype_bytes(view.dtype);
}
std::int64_t rows_per_block(std::int64_t width) { return std::max<std::int64_t>(1, kBlockElements / std::max<std::int64_t>(1, width)); }

}  // namespace

void Ops::layer_norm(const TensorView& x, const TensorView& y, const RowTable& scale, const RowTable& shift, float eps) const {
  const auto kernel = kernels_->layer_norm[kernel_index(x.dtype)];
  const std::int64_t width = x.size(1);
  over_blocks(x.size(0), rows_per_block(width), [&](std::int64_t begin, std::int64_t end) {
    kernel(at(x, begin * width), at(y, begin * width), scale.from(begin), shift.from(begin), width, eps, end - begin);
  });
}
void Ops::add_norm(const TensorView& x, const TensorView& y, const RowTable& gate, const RowTable& scale, const RowTable& shift,
                   float eps) const {
  const auto kernel = kernels_->add_norm[kernel_index(x.dtype)];
  const std::int64_t width = x.size(1);
  over_blocks(x.size(0), rows_per_block(width), [&](std::int64_t begin, std::int64_t end) {
    kernel(at(x, begin * width), at(y, begin * width), gate.from(begin), scale.from(begin), shift.from(begin), width, eps, end - begin);
  });
}
void Ops::norm_rope(const TensorView& x, const float* weight, const float* rope, std::int64_t head_dim, float eps) const {
  const auto kernel = kernels_->norm_rope[kernel_index(x.dtype)];
  const std::int64_t width = x.size(1);
  over_blocks(x.size(0), rows_per_block(width), [&](std::int64_t begin, std::int64_t end) {
    kernel(at(x, begin * width), weight, rope == nullptr ? nullptr : rope + begin * head_dim, width, head_dim, eps, end - begin);
  });
}
void Ops::gated_add(const TensorView& x, const TensorView& y, const RowTable& gate) const {
  const auto kernel = kernels_->gated_add[kernel_index(x.dtype)];
  const std::int64_t width = x.size(1);
  over_blocks(x.size(0), rows_per_block(width), [&](std::int64_t begin, std::int64_t end) {
    kernel(at(x, begin * width), at(y, begin * width), gate.from(begin), width, end - begin);
  });
}
void Ops::gelu_tanh(const TensorView& x) const {
  const auto kernel = kernels_->gelu_tanh[kernel_index(x.dtype)];
  over_blocks(x.numel(), kBlockElements, [&](std::int64_t begin, std::int64_t end) { kernel(at(x, begin), end - begin); });
}
void Ops::silu(const TensorView& x, const TensorView& y) const {
  const auto kernel = kernels_->silu[kernel_index(x.dtype)];
  over_blocks(x.numel(), kBlockElements, [&](std::int64_t begin, std::int64_t end) { kernel(at(x, begin), at(y, begin), end - begin); });
}
void Ops::guide(const TensorView& c, const TensorView& u, const TensorView& out, float g) const {
  const auto kernel = kernels_->guide[kernel_index(c.dtype)];
  over_blocks(c.numel(), kBlockElements,
              [&](std::int64_t begin, std::int64_t end) { kernel(at(c, begin), at(u, begin), out.as<float>() + begin, g, end - begin); });
}

}  // namespace winnow::dit
