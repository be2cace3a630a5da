// The definition of attention over a plan, in f64: every executor is tested against it.
#pragma once

#include "exec/attend_args.h"

namespace winnow {

class Workspace;

// For every query row i of a plan row, over the keys j of its refine and skim tiles, then over its virtual keys c (one per
// mean_group keys of a tile that is neither listed nor excluded; only if the plan says Skipped::mean):
//   x_j = scale q_i.k_j     x_c = scale q_i.mean(k_c) + ln n_c     n_c valid keys
//   m = max x     l = sum exp(x - m)     O_i = sum exp(x - m) v / l     lse = m + ln l     inv_l = 1 / l
// A row without any key, and a query that is in no tile: O = 0, lse = -inf, inv_l = 0. Keys at or after key_lengths[b], in no tile,
// or of another document do not exist.
// Tiles come in the granule's order. A unit of granule.keys keys is left out for a granule of rows when
//   (max of its x - max of x so far) log2(e) < skip_threshold_log2     for every row of the granule
// but not when it is the granule's first one, and never for virtual keys.
// Scratch: granule.rows x (Sk + virtual keys) doubles per thread.
SkipCounts attend_reference(const AttendArgs& args, SkipGranule granule, Workspace& ws);

}  // namespace winnow
