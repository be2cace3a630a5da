// Settings of a study, checked before its first run.
#pragma once

#include <string>

#include "winnow/session.h"
#include "winnow/step_cache.h"

namespace winnow::report {

// Throws Error unless `label` can name rows of reports: some text on one line. `where` it was given.
void check_label(const std::string& label, const std::string& where, const std::string& operation);

// Throws the Error that a run with these settings would begin with, naming `label`: an executor that does not run here, a file that
// cannot be loaded, a calibration that is missing. `model`: its directory, or empty for captured calls.
void check_setting(const std::string& label, const AttentionConfig& attention, const StepCacheConfig& cache, const std::string& model,
                   const std::string& operation);

}  // namespace winnow::report
