// Stand-in until plans can be read.
#include "winnow/error.h"
#include "winnow/plan.h"

namespace winnow {

TilePlan TilePlan::load(const std::string& path) { throw Error("plan", path + ": not built yet"); }

}  // namespace winnow
