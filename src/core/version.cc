#include "winnow/version.h"

namespace winnow {

const char* version() { return WINNOW_VERSION; }

}  // namespace winnow
