// Numbers as messages show them.
#pragma once

#include <string>

namespace winnow {

// Six digits at most, as printf's %g: "0.25", "1e-05", "nan".
std::string short_number(double x);

}  // namespace winnow
