// Any bytes either parse into tensors whose every byte is readable, or throw Error. Seeds: fuzz/corpus/safetensors.
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/safetensors.h"
#include "winnow/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto file = winnow::SafetensorsFile::parse(std::as_bytes(std::span(data, size)), "fuzz");
    unsigned sum = 0;
    for (const auto& key : file.keys()) {
      const winnow::TensorView view = file.at(key);
      const auto bytes = static_cast<std::size_t>(view.numel()) * winnow::dtype_bytes(view.dtype);
      for (std::size_t i = 0; i < bytes; ++i) sum += view.as<std::uint8_t>()[i];
      if (bytes < 4096 && view.dtype != winnow::DType::i64 && view.dtype != winnow::DType::i32) file.copy(key);
    }
    volatile unsigned sink = sum;
    (void)sink;
  } catch (const winnow::Error&) {
    return 0;
  }
  return 0;
}
