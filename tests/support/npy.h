// A .npy file as numpy.save() writes it.
#pragma once

#include <string>

namespace winnow::tests {

// `dict`: the header's Python literal. Header and magic are padded to a multiple of 64 with blanks and a newline.
inline std::string npy(std::string dict, const std::string& data, char version = 1) {
  const std::size_t before = version == 1 ? 10 : 12;
  while ((before + dict.size() + 1) % 64 != 0) dict += ' ';
  dict += '\n';
  std::string length = {static_cast<char>(dict.size() & 255U), static_cast<char>(dict.size() >> 8U)};
  if (version > 1) length += std::string(2, '\0');
  return std::string("\x93NUMPY") + version + std::string(1, '\0') + length + dict + data;
}

// numpy.save() of a bool array. `shape`: "(2, 3)".
inline std::string npy_of_bools(const std::string& shape, const std::string& data) {
  return npy("{'descr': '|b1', 'fortran_order': False, 'shape': " + shape + ", }", data);
}

}  // namespace winnow::tests
