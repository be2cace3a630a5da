#pragma once

namespace winnow {

// "0.1.0"
const char* version();

}  // namespace winnow
