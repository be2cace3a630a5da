#include "core/text.h"

#include <array>
#include <cstdio>

namespace winnow {

std::string short_number(double x) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", x);
  return text.data();
}

}  // namespace winnow
