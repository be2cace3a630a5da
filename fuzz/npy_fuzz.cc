// Any bytes either load as an array with as many bytes as its shape says, or throw Error.
// Seeds: fuzz/corpus/npy.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "core/npy.h"
#include "winnow/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const winnow::Tensor tensor = winnow::parse_npy(std::as_bytes(std::span(data, size)), "fuzz");
    if (tensor.bytes() > size) std::abort();
  } catch (const winnow::Error&) {
    return 0;
  }
  return 0;
}
