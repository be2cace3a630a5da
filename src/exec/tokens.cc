#include "exec/tokens.h"

#include <cstring>
#include <limits>

namespace winnow {

namespace {

void clear_query(const AttendArgs& a, std::int64_t b, std::int64_t h, std::int64_t token) {
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(a.out_dtype));
  const std::int64_t o = b * a.out_strides.batch + token * a.out_strides.token + h * a.out_strides.head;
  std::memset(static_cast<std::byte*>(a.out) + o * bytes, 0, static_cast<std::size_t>(a.D * bytes));  // 0 in every float format
  const auto at = [&](const RowStrides& s) { return b * s.batch + h * s.head + token * s.token; };
  if (a.lse != nullptr) a.lse[at(a.lse_strides)] = -std::numeric_limits<float>::infinity();
  if (a.inv_l != nullptr) a.inv_l[at(a.inv_l_strides)] = 0.0F;
}

}  // namespace

void clear_missing_queries(const AttendArgs& a) {
  const TokenLayout* layout = a.plan->geometry().query_layout.get();
  if (layout == nullptr) return;
  for (const TokenLayout::Range& range : layout->missing()) {
    for (std::int64_t token = range.begin; token < range.end; ++token) {
      for (std::int64_t b = 0; b < a.B; ++b)
        for (std::int64_t h = 0; h < a.H; ++h) clear_query(a, b, h, token);
    }
  }
}

}  // namespace winnow
