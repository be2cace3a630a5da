// Linear layers on oneDNN: y = x W^T + b in f32 or in bf16 with f32 sums and one rounding.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "winnow/tensor.h"
#include "winnow/workspace.h"

namespace winnow::dit {

// Work on rows [begin, end) that a layer's worker does right after computing them, while they are in its cache. Refers to
// the callable, which has to outlive it.
class RowTask {
 public:
  RowTask() = default;
  template <class Body>
  explicit RowTask(const Body& body)
      : call_([](const void* context, std::int64_t begin, std::int64_t end) { (*static_cast<const Body*>(context))(begin, end); }),
        context_(&body) {}
  explicit operator bool() const { return call_ != nullptr; }
  void operator()(std::int64_t begin, std::int64_t end) const { call_(context_, begin, end); }

 private:
  void (*call_)(const void*, std::int64_t, std::int64_t) = nullptr;
  const void* context_ = nullptr;
};

// Primitives, streams and buffers' descriptors, shared by all layers of an engine. One caller at a time.
class LinearContext {
 public:
  // emulate_bf16: f32 primitives on widened operands, as on processors without bf16 instructions.
  explicit LinearContext(bool emulate_bf16 = false);
  ~LinearContext();
  LinearContext(const LinearContext&) = delete;
  LinearContext& operator=(const LinearContext&) = delete;

  double seconds() const;                           // spent in Linear::run so far
  std::string implementation(DType compute) const;  // oneDNN's name of the code a large layer runs, "brg:avx512_core_amx_bf16"

  struct Impl;

 private:
  friend class Linear;
  std::unique_ptr<Impl> impl_;
};

// One layer. Rows are computed in blocks of kRows by one thread each, so the result does not depend on the number of
// threads; every oneDNN primitive is created single-threaded, once per (rows, in, out, dtype), and reused.
class Linear {
 public:
  static constexpr std::int64_t kRows = 128;

  Linear() = default;
  // weight [out,in] and bias [out] of any float dtype, copied; `compute` is f32 or bf16 and the dtype of x and y.
  Linear(LinearContext& context, const TensorView& weight, const TensorView& bias, DType compute);

  std::int64_t in() const { return in_; }
  std::int64_t out() const { return out_; }
  std::size_t bytes() const { return bytes_; }
  // Makes what run() needs for M rows on the current number of threads. run() does it by itself, allocating.
  void prepare(std::int64_t rows) const;
  // y [M,out] = x [M,in] W^T + b; contiguous. Once prepared for M, allocates only from `ws`.
  // `then` sees rows of y in blocks, each once; it may also change them.
  void run(const TensorView& x, const TensorView& y, Workspace& ws, RowTask then = {}) const;

 private:
  struct Weights;
  struct Ready;
  Ready* ready(std::int64_t block_rows) const;

  LinearContext* context_ = nullptr;
  std::int64_t in_ = 0, out_ = 0;
  std::size_t bytes_ = 0;
  DType compute_ = DType::f32;
  std::shared_ptr<Weights> weights_;
};

}  // namespace winnow::dit
