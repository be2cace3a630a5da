#include "core/text.h"

#include <array>
#include <charconv>
#include <cmath>

namespace winnow {

namespace {

template <class Float>
std::string shortest_text(Float x) {
  if (std::isnan(x)) return "nan";  // without a sign
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), x).ptr};
}

}  // namespace

std::string short_number(double x) { return shortest_text(x); }
std::string short_number(float x) { return shortest_text(x); }

std::string counted(std::int64_t n, std::string_view noun) { return std::to_string(n) + " " + std::string(noun) + (n == 1 ? "" : "s"); }

}  // namespace winnow
