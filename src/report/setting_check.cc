#include "report/setting_check.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/label.h"
#include "steps/step_cache.h"

namespace winnow::report {

void check_label(const std::string& label, const std::string& where, const std::string& operation) {
  const bool is_line = std::none_of(label.begin(), label.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20U; });
  if (is_line && label.find_first_not_of(' ') != std::string::npos) return;
  throw Error(operation, where + ": label: expected some text on one line, got " + nlohmann::json(label).dump(-1, ' ', true));
}

void check_setting(const std::string& label, const AttentionConfig& attention, const StepCacheConfig& cache, const std::string& model,
                   const std::string& operation) {
  with_label(operation, label, [&] {
    const AttentionSession session(model.empty() ? attention : with_model_calibration(attention, model));
    const StepCache steps(model.empty() ? cache : with_model_calibration(cache, model));
  });
}

}  // namespace winnow::report
