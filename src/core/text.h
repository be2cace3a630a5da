// Numbers as messages show them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace winnow {

// The fewest digits that read back as this number: "0.25", "1e-05", "nan".
std::string short_number(double x);
std::string short_number(float x);

// "1 value", "2 values", "0 values".
std::string counted(std::int64_t n, std::string_view noun);

}  // namespace winnow
