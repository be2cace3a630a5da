#include "winnow/tensor.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "core/huge_pages.h"
#include "core/overlap.h"
#include "core/text.h"
#include "winnow/error.h"

namespace winnow {

namespace {

constexpr std::size_t kAlignment = 64;

void set_shape(TensorView& view, const std::int64_t* shape, int rank) {
  if (rank < 0 || rank > TensorView::kMaxRank) {
    throw Error("tensor", "rank: expected 0 to " + std::to_string(TensorView::kMaxRank) + ", got " + std::to_string(rank));
  }
  if (rank > 0 && shape == nullptr) throw Error("tensor", "shape: expected " + counted(rank, "extent") + ", got a null pointer");
  view.rank = rank;
  std::int64_t stride = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    const auto a = static_cast<std::size_t>(axis);
    if (shape[axis] < 0) throw Error("tensor", "extent: expected >= 0, got " + std::to_string(shape[axis]));
    view.shape[a] = shape[axis];
    view.strides[a] = stride;
    if (shape[axis] > 0 && stride > std::numeric_limits<std::int64_t>::max() / 16 / shape[axis]) {
      throw Error("tensor", "too many elements");
    }
    stride *= std::max<std::int64_t>(shape[axis], 1);
  }
}

}  // namespace

std::size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::i8:
    case DType::u8:
    case DType::boolean: return 1;
    case DType::f16:
    case DType::bf16: return 2;
    case DType::f32:
    case DType::i32: return 4;
    case DType::i64:
    case DType::f64: return 8;
  }
  throw Error("tensor", "unknown dtype " + std::to_string(static_cast<int>(dtype)));
}

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "f32";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::i8: return "i8";
    case DType::u8: return "u8";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::f64: return "f64";
    case DType::boolean: return "bool";
  }
  return "unknown";
}

TensorView::TensorView(void* data_, DType dtype_, const std::int64_t* shape_, int rank_) : data(data_), dtype(dtype_) {
  set_shape(*this, shape_, rank_);
}

TensorView::TensorView(void* data_, DType dtype_, std::initializer_list<std::int64_t> shape_)
    : TensorView(data_, dtype_, shape_.begin(), static_cast<int>(shape_.size())) {}

TensorView::TensorView(const void* data_, DType dtype_, std::initializer_list<std::int64_t> shape_)
    : TensorView(const_cast<void*>(data_), dtype_, shape_) {}  // NOLINT(cppcoreguidelines-pro-type-const-cast)

std::int64_t TensorView::numel() const {
  std::int64_t n = 1;
  for (int axis = 0; axis < rank; ++axis) n *= size(axis);
  return n;
}

bool TensorView::is_contiguous() const {
  std::int64_t expected = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    if (size(axis) != 1 && stride(axis) != expected) return numel() == 0;
    expected *= size(axis);
  }
  return true;
}

TensorView TensorView::slice(int axis, std::int64_t begin, std::int64_t end) const {
  if (axis < 0 || axis >= rank || begin < 0 || end < begin || end > size(axis)) {
    throw Error("tensor", "slice [" + std::to_string(begin) + "," + std::to_string(end) + ") of axis " + std::to_string(axis) +
                              " is outside " + describe());
  }
  TensorView result = *this;
  result.shape[static_cast<std::size_t>(axis)] = end - begin;
  result.data = static_cast<std::byte*>(data) + begin * stride(axis) * static_cast<std::int64_t>(dtype_bytes(dtype));
  return result;
}

TensorView TensorView::reshape(std::initializer_list<std::int64_t> new_shape) const {
  TensorView result = *this;
  set_shape(result, new_shape.begin(), static_cast<int>(new_shape.size()));
  if (!is_contiguous() || result.numel() != numel()) {
    throw Error("tensor", "cannot view " + describe() + " as " + result.describe());
  }
  return result;
}

std::string TensorView::describe() const {
  std::string text = "[";
  for (int axis = 0; axis < rank; ++axis) {
    if (axis > 0) text += ',';
    text += std::to_string(size(axis));
  }
  return text + "] " + dtype_name(dtype);
}

TensorView TensorView::strided(void* data, DType dtype, const std::int64_t* shape, const std::int64_t* strides, int rank) {
  TensorView view(data, dtype, shape, rank);
  if (rank > 0 && strides == nullptr) throw Error("tensor", "strides: expected " + counted(rank, "number") + ", got a null pointer");
  std::copy_n(strides, rank, view.strides.begin());
  if (!is_addressable(view)) throw Error("tensor", "strides: expected elements within 2^62 bytes, got " + view.describe() + " beyond");
  return view;
}

namespace {
template <std::size_t kAlign>
void free_aligned(std::byte* p) {
  ::operator delete[](p, std::align_val_t{kAlign});
}
}  // namespace

Tensor::Tensor(DType dtype, const std::int64_t* shape, int rank) : view_(static_cast<void*>(nullptr), dtype, shape, rank) {
  const std::size_t bytes = std::max<std::size_t>(this->bytes(), 1);
  const bool huge = bytes >= kHugePage / 2;
  const std::size_t alignment = huge ? kHugePage : kAlignment;
  const std::size_t size = huge ? (bytes + kHugePage - 1) / kHugePage * kHugePage : bytes;
  try {
    storage_ = {static_cast<std::byte*>(::operator new[](size, std::align_val_t{alignment})),
                huge ? free_aligned<kHugePage> : free_aligned<kAlignment>};
  } catch (const std::bad_alloc&) {
    throw Error("tensor", "out of memory: " + view_.describe() + " needs " + std::to_string(bytes) + " bytes");
  }
  if (huge) prefer_huge_pages(storage_.get(), size);
  std::memset(storage_.get(), 0, bytes);
  view_.data = storage_.get();
}

Tensor::Tensor(DType dtype, std::initializer_list<std::int64_t> shape) : Tensor(dtype, shape.begin(), static_cast<int>(shape.size())) {}

}  // namespace winnow
