#include "report/unfinished.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "calib/skip_softmax.h"
#include "core/fingerprint.h"
#include "core/partial_file.h"
#include "report/study_text.h"
#include "winnow/error.h"

namespace winnow::report {

namespace {
constexpr const char* kOperation = "calibrate";
constexpr const char* kFormat = "winnow.unfinished_calibration";
}  // namespace

Unfinished::Unfinished(std::string path, nlohmann::json identity, bool resume) : path_(std::move(path)), identity_(std::move(identity)) {
  if (std::error_code error; !resume || !std::filesystem::exists(path_, error)) return;
  const nlohmann::json json = parse_json(read_text_file(path_, kOperation), path_, kOperation);
  try {
    if (json.at("format") != kFormat) fail();
    if (json.at("identity") == identity_) taken_ = json.at("measured");
  } catch (const nlohmann::json::exception&) {
    fail();
  }
}

void Unfinished::keep(const nlohmann::json& measured) const {
  const nlohmann::json json = {{"format", kFormat}, {"identity", identity_}, {"measured", measured}};
  write_text_file(kOperation, path_, json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void Unfinished::finish() const {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

void Unfinished::fail() const { throw Error(kOperation, path_ + ": expected what an interrupted calibration has left"); }

nlohmann::json calibration_identity(const std::string& model_directory, Precision precision, const GenerateOptions& options,
                                    const std::vector<std::string>& prompts) {
  StudyInfo info;
  info.model = model_directory;
  info.precision = precision;
  info.generate = options;
  return {{"program", program_fingerprint()},
          {"weights", model_fingerprint(model_directory)},
          {"generation", nlohmann::json::parse(generation_text(info))},
          {"executor", options.attention.executor},
          {"seed", options.seed},
          {"prompt_embeds", options.prompt_embeds.empty() ? "" : file_fingerprint(options.prompt_embeds, kOperation)},
          {"prompts", prompts}};
}

}  // namespace winnow::report
