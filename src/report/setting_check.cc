#include "report/setting_check.h"

#include "steps/step_cache.h"
#include "winnow/error.h"

namespace winnow::report {

void check_setting(const std::string& label, const AttentionConfig& attention, const StepCacheConfig& cache, const std::string& model,
                   const std::string& operation) {
  try {
    const AttentionSession session(model.empty() ? attention : with_model_calibration(attention, model));
    const StepCache steps(model.empty() ? cache : with_model_calibration(cache, model));
  } catch (const Error& error) {
    throw Error(operation, label + ": " + error.message());
  }
}

}  // namespace winnow::report
