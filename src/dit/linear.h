// Linear layers on oneDNN: y = x W^T + b in f32 or in bf16 with f32 sums and one rounding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "winnow/tensor.h"
#include "winnow/workspace.h"

namespace winnow::dit {

class Linear;
class RowBlock;

// Primitives, streams and weights of all layers of an engine, which it outlives. One caller at a time.
class LinearContext {
 public:
  // emulate_bf16: f32 primitives on widened operands, as on processors without bf16 instructions.
  explicit LinearContext(bool emulate_bf16 = false);
  ~LinearContext();
  LinearContext(const LinearContext&) = delete;
  LinearContext& operator=(const LinearContext&) = delete;

  double seconds() const;                           // spent in layers so far
  std::string implementation(DType compute) const;  // oneDNN's name of the code a large layer runs, "brg:avx512_core_amx_bf16"

  struct Impl;

 private:
  friend class Linear;
  friend class RowBlock;
  std::unique_ptr<Impl> impl_;
};

// Rows [begin, end) in the hands of one worker: what they go through together stays in its cache.
class RowBlock {
 public:
  std::int64_t begin() const { return begin_; }
  std::int64_t end() const { return end_; }
  std::int64_t rows() const { return end_ - begin_; }
  int worker() const { return worker_; }
  // The block's rows of a tensor.
  TensorView of(const TensorView& view) const { return view.slice(0, begin_, end_); }
  // y [rows,out] = x [rows,in] W^T + b; contiguous, of the layer's dtype.
  void run(const Linear& layer, const TensorView& x, const TensorView& y);

 private:
  friend class Linear;
  std::int64_t begin_ = 0, end_ = 0;
  int worker_ = 0;
  std::byte* scratch_ = nullptr;  // oneDNN's
  float* wide_ = nullptr;         // widened operands
  std::int64_t linear_nanoseconds_ = 0;
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
  void run(const TensorView& x, const TensorView& y, Workspace& ws) const;
  // Calls body(RowBlock&) for blocks of up to kRows of `rows` rows, in parallel. `layers`, of one context, are those that it
  // may run. Once they are prepared, allocates only from `ws`.
  template <class Body>
  static void for_blocks(std::initializer_list<const Linear*> layers, std::int64_t rows, Workspace& ws, const Body& body) {
    for_blocks(
        {layers.begin(), layers.size()}, rows, ws,
        [](const void* context, RowBlock& block) { (*static_cast<const Body*>(context))(block); }, &body);
  }

 private:
  struct Weights;
  struct Ready;
  friend class RowBlock;
  static void for_blocks(std::span<const Linear* const> layers, std::int64_t rows, Workspace& ws, void (*body)(const void*, RowBlock&),
                         const void* context);
  void check(const TensorView& x, const TensorView& y) const;
  bool widens() const;                                            // bf16 operands to f32
  Ready* find_ready(std::int64_t block_rows, int workers) const;  // null if there is none
  Ready* ready(std::int64_t block_rows) const;

  LinearContext* context_ = nullptr;
  std::int64_t in_ = 0, out_ = 0;
  std::size_t bytes_ = 0;
  DType compute_ = DType::f32;
  std::shared_ptr<Weights> weights_;
};

}  // namespace winnow::dit
