// Everything Winnow offers, in one include; but for winnow/dlpack.h, which needs DLPack's own header.
#pragma once

#include "winnow/attend.h"        // IWYU pragma: export
#include "winnow/block_mask.h"    // IWYU pragma: export
#include "winnow/budget.h"        // IWYU pragma: export
#include "winnow/callbacks.h"     // IWYU pragma: export
#include "winnow/cuda.h"          // IWYU pragma: export
#include "winnow/engine.h"        // IWYU pragma: export
#include "winnow/error.h"         // IWYU pragma: export
#include "winnow/methods.h"       // IWYU pragma: export
#include "winnow/metrics.h"       // IWYU pragma: export
#include "winnow/plan.h"          // IWYU pragma: export
#include "winnow/select.h"        // IWYU pragma: export
#include "winnow/session.h"       // IWYU pragma: export
#include "winnow/step_cache.h"    // IWYU pragma: export
#include "winnow/steps.h"         // IWYU pragma: export
#include "winnow/tensor.h"        // IWYU pragma: export
#include "winnow/threads.h"       // IWYU pragma: export
#include "winnow/token_layout.h"  // IWYU pragma: export
#include "winnow/version.h"       // IWYU pragma: export
#include "winnow/workspace.h"     // IWYU pragma: export
