// TensorView to and from DLPack. Header-only, so that only its users need <dlpack/dlpack.h>; that header's DLTensor is an
// unnamed struct up to version 0.8 and cannot be forward-declared.
#pragma once

#include <dlpack/dlpack.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "winnow/error.h"
#include "winnow/tensor.h"

namespace winnow {

// Throws Error if the DLPack tensor has lanes != 1, an unsupported dtype or device, or too high a rank. Copies no data.
inline TensorView from_dlpack(const DLTensor& tensor) {
  if (tensor.dtype.lanes != 1) throw Error("dlpack", "lanes: expected 1, got " + std::to_string(tensor.dtype.lanes));
  struct Known {
    int code;
    int bits;
    DType dtype;
  };
  constexpr Known kKnown[] = {{kDLFloat, 32, DType::f32},   {kDLFloat, 64, DType::f64}, {kDLFloat, 16, DType::f16},
                              {kDLBfloat, 16, DType::bf16}, {kDLInt, 8, DType::i8},     {kDLUInt, 8, DType::u8},
                              {kDLInt, 32, DType::i32},     {kDLInt, 64, DType::i64}};
  for (const Known& known : kKnown) {
    if (known.code != tensor.dtype.code || known.bits != tensor.dtype.bits) continue;
    void* data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
    TensorView view = tensor.strides == nullptr ? TensorView(data, known.dtype, tensor.shape, tensor.ndim)
                                                : TensorView::strided(data, known.dtype, tensor.shape, tensor.strides, tensor.ndim);
    if (tensor.device.device_type != kDLCPU && tensor.device.device_type != kDLCUDA) {
      throw Error("dlpack", "device: expected CPU or CUDA, got type " + std::to_string(tensor.device.device_type));
    }
    view.device = tensor.device.device_type == kDLCPU ? Device::cpu : Device::cuda;
    view.device_index = tensor.device.device_id;
    return view;
  }
  throw Error("dlpack",
              "dtype: code " + std::to_string(tensor.dtype.code) + " with " + std::to_string(tensor.dtype.bits) + " bits is not supported");
}

// The result's shape and strides point into `view`, which has to outlive it.
inline DLTensor to_dlpack(TensorView& view) {
  DLTensor tensor{};
  tensor.data = view.data;
  tensor.device.device_type = view.device == Device::cpu ? kDLCPU : kDLCUDA;
  tensor.device.device_id = view.device_index;
  tensor.ndim = view.rank;
  std::uint8_t code = kDLFloat;
  if (view.dtype == DType::bf16) code = kDLBfloat;
  if (view.dtype == DType::i8 || view.dtype == DType::i32 || view.dtype == DType::i64) code = kDLInt;
  if (view.dtype == DType::u8 || view.dtype == DType::boolean) code = kDLUInt;
  tensor.dtype.code = code;
  tensor.dtype.bits = static_cast<std::uint8_t>(8 * dtype_bytes(view.dtype));
  tensor.dtype.lanes = 1;
  tensor.shape = view.shape.data();
  tensor.strides = view.strides.data();
  return tensor;
}

}  // namespace winnow
