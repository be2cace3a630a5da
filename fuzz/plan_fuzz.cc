// Any bytes either load as a plan that validate() accepts and that survives canonicalising, or throw Error.
// Seeds: fuzz/corpus/plan.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "winnow/error.h"
#include "winnow/plan.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const winnow::TilePlan plan = winnow::TilePlan::load(std::as_bytes(std::span(data, size)), "fuzz");
    plan.validate();
    // A dense plan's lists are not in the file, so walking its rows is not bounded by the file's size.
    const winnow::PlanGeometry& g = plan.geometry();
    if (!plan.is_identity() && g.rows() < 10000) {
      const double density = plan.density();
      if (!(density >= 0.0 && density <= 1.0 + 1e-9) || !(plan.canonical() == plan)) std::abort();
    }
  } catch (const winnow::Error&) {
    return 0;
  }
  return 0;
}
