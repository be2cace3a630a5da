// Reading NumPy's .npy files of bytes: magic, version, header length, a Python literal, raw data.
// Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "winnow/tensor.h"

namespace winnow {

// Whether the file begins like one. False if it cannot be read.
bool is_npy_file(const std::string& path);

// The array of a .npy file, format 1 to 3, of bool or uint8 in C order, at most 1 GiB. Throws Error naming the file for anything else,
// and for a size that is not exactly the header's.
Tensor read_npy(const std::string& path);
// The same from bytes in memory; `name` appears in errors.
Tensor parse_npy(std::span<const std::byte> bytes, const std::string& name);

}  // namespace winnow
