// Tensor views and owners. The letters used everywhere in Winnow are defined here:
//   B batch, S tokens (Sq queries, Sk keys), H query heads, Hk key heads, D head dim, Gq/Gk tiles, F frames.
// Attention tensors are [B,S,H,D] with any B, S, H strides and contiguous D.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

namespace winnow {

enum class DType : std::uint8_t { f32, f16, bf16, i8, u8, i32, i64, f64, boolean };
enum class Device : std::uint8_t { cpu, cuda };

std::size_t dtype_bytes(DType dtype);
const char* dtype_name(DType dtype);  // "f32", "bf16", ...

// A typed, strided window on memory that somebody else owns. Copying it copies no data.
struct TensorView {
  static constexpr int kMaxRank = 8;

  void* data = nullptr;
  DType dtype = DType::f32;
  Device device = Device::cpu;
  int device_index = 0;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};  // in elements

  TensorView() = default;
  // Contiguous row-major view. Throws Error if rank > kMaxRank or < 0, an extent is negative, or `shape` is null.
  TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> shape);
  TensorView(void* data, DType dtype, const std::int64_t* shape, int rank);
  // Read-only inputs are passed through the same type; Winnow never writes to an input.
  TensorView(const void* data, DType dtype, std::initializer_list<std::int64_t> shape);

  // A view with explicit strides, in elements. Throws Error like the constructors, and if an element is 2^62 bytes away or more.
  static TensorView strided(void* data, DType dtype, const std::int64_t* shape, const std::int64_t* strides, int rank);

  std::int64_t numel() const;
  std::int64_t size(int axis) const { return shape[static_cast<std::size_t>(axis)]; }
  std::int64_t stride(int axis) const { return strides[static_cast<std::size_t>(axis)]; }
  bool is_contiguous() const;
  // Elements [begin, end) of one axis.
  TensorView slice(int axis, std::int64_t begin, std::int64_t end) const;
  // The same data under another shape. Throws Error unless contiguous with equal numel.
  TensorView reshape(std::initializer_list<std::int64_t> new_shape) const;
  std::string describe() const;  // "[2,37760,40,128] bf16"

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// Owns contiguous, 64-byte aligned, zero-initialised CPU memory; from 1 MiB on whole huge pages. Move-only.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, std::initializer_list<std::int64_t> shape);
  Tensor(DType dtype, const std::int64_t* shape, int rank);

  TensorView view() const { return view_; }
  operator TensorView() const { return view_; }  // NOLINT(google-explicit-constructor)
  std::int64_t numel() const { return view_.numel(); }
  std::size_t bytes() const { return static_cast<std::size_t>(numel()) * dtype_bytes(view_.dtype); }
  bool empty() const { return view_.data == nullptr; }

  template <class T>
  T* as() const {
    return view_.as<T>();
  }

 private:
  std::unique_ptr<std::byte[], void (*)(std::byte*)> storage_{nullptr, nullptr};
  TensorView view_;
};

}  // namespace winnow
