// Short names for contents: FNV-1a, 64 bits. Tells files apart that changed, not those that somebody forges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace winnow {

class Fingerprint {
 public:
  void add(const char* bytes, std::size_t size);
  std::string text() const;  // 16 hexadecimal digits

 private:
  std::uint64_t hash_ = 0xCBF29CE484222325U;
};

// Of all that is in the file. Throws Error.
std::string file_fingerprint(const std::string& path, const std::string& operation);

}  // namespace winnow
