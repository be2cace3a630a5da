#include "core/fingerprint.h"

#include <array>
#include <cstdio>
#include <fstream>

#include "winnow/error.h"

namespace winnow {

void Fingerprint::add(const char* bytes, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) hash_ = (hash_ ^ static_cast<unsigned char>(bytes[i])) * 0x100000001B3U;
}

std::string Fingerprint::text() const {
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(hash_));
  return digits.data();
}

std::string file_fingerprint(const std::string& path, const std::string& operation) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(operation, path + ": cannot read it");
  Fingerprint fingerprint;
  std::array<char, 1 << 16> block{};
  while (file.read(block.data(), block.size()) || file.gcount() > 0) fingerprint.add(block.data(), static_cast<std::size_t>(file.gcount()));
  return fingerprint.text();
}

}  // namespace winnow
