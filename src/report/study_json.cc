// A study as JSON and CSV, and back.
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/fingerprint.h"
#include "core/json.h"
#include "device/cpu/features.h"
#include "report/json_number.h"
#include "report/machine.h"
#include "report/study_text.h"
#include "winnow/error.h"
#include "winnow/threads.h"
#include "winnow/version.h"

namespace winnow::report {

namespace {

using Json = nlohmann::ordered_json;

void put_setting(Json& json, const StudySetting& setting) {
  json["label"] = setting.label;
  json["method"] = setting.attention.method_name();
  json["setting"] = setting_text(setting.attention);
  put(json, "target_density", setting.target);
  if (setting.is_exact) json["floor"] = true;
}

Json capture_record(const Study& study, const CaptureRow& row) {
  Json json;
  json["capture"] = row.capture;
  put_setting(json, study.settings[row.setting]);
  const CallMeasurement& m = row.call;
  json["executor"] = m.executor;
  put(json, "density", m.density);
  if (std::holds_alternative<CosineGate>(study.settings[row.setting].attention.method)) put(json, "gated_share", m.gated_share());
  put(json, "rel_l1", m.errors.rel_l1);
  put(json, "rel_l2", m.errors.rel_l2);
  put(json, "cosine", m.errors.cosine);
  put(json, "dense_rel_l2", m.dense_errors.rel_l2);
  put(json, "mass_recall", m.mass_recall);
  put(json, "set_recall", m.set_recall);
  if (m.repeat == 0) return json;
  put(json, "plan_share", m.plan_share());
  put(json, "kernel_speedup", m.kernel_speedup());
  put(json, "speedup", m.speedup());
  put(json, "plan_seconds", m.plan_seconds);
  put(json, "kernel_seconds", m.kernel_seconds);
  put(json, "dense_seconds", m.dense_seconds);
  return json;
}

Json video_record(const Study& study, const VideoSummary& summary) {
  Json json;
  put_setting(json, study.settings[summary.setting]);
  json["prompts"] = summary.prompts;
  put(json, "density", summary.density);
  put(json, "seconds", summary.seconds);
  put(json, "speedup", summary.speedup);
  put(json, "attention_speedup", summary.attention_speedup);
  put(json, "plan_share", summary.plan_share);
  put(json, "psnr_db", summary.psnr_db);
  put(json, "worst_psnr_db", summary.worst_psnr_db);
  put(json, "ssim", summary.ssim);
  return json;
}

// Every number of a run that a report keeps.
template <class Row, class Visit>
void video_numbers(Row& row, Visit&& visit) {
  visit("density", row.density);
  visit("seconds", row.seconds);
  visit("plan_seconds", row.plan_seconds);
  visit("attention_seconds", row.attention_seconds);
  visit("dense_seconds", row.dense_seconds);
  visit("dense_attention_seconds", row.dense_attention_seconds);
  visit("psnr_db", row.psnr_db);
  visit("ssim", row.ssim);
}

Json video_run(const Study& study, const VideoRow& row) {
  Json json;
  json["prompt"] = row.prompt;
  json["seed"] = row.seed;
  put_setting(json, study.settings[row.setting]);
  video_numbers(row, [&](const char* key, const auto& value) { put(json, key, value); });
  return json;
}

// What decides a generation besides prompt, seed and attention.
Json generation_record(const StudyInfo& info) {
  const GenerateOptions& options = info.generate;
  Json json;
  json["model"] = info.model;
  json["precision"] = info.precision == Precision::bf16 ? "bf16" : "f32";
  json["width"] = options.width;
  json["height"] = options.height;
  json["frames"] = options.frames;
  json["steps"] = options.steps;
  if (!options.latents.empty()) {
    json["latents"] = options.latents;
    json["latents_fingerprint"] = file_fingerprint(options.latents, "compare");
  }
  if (!options.negative_prompt.empty()) json["negative_prompt"] = options.negative_prompt;
  put(json, "guidance_scale", options.guidance_scale);
  put(json, "guidance_scale_2", options.guidance_scale_2);
  if (options.guidance_until < 1.0F) json["guidance_until"] = options.guidance_until;
  put(json, "flow_shift", options.flow_shift);
  if (options.solver) json["solver"] = *options.solver == Solver::unipc ? "unipc" : "euler";
  json["sigma_mode"] = options.sigma_mode == SigmaMode::wan ? "wan" : "diffusers";
  put(json, "boundary_ratio", options.boundary_ratio);
  json["repeat"] = info.repeat;
  json["threads"] = num_threads();
  return json;
}

void read(const nlohmann::json& object, const char* key, double& value) { value = object.at(key).get<double>(); }
void read(const nlohmann::json& object, const char* key, std::optional<double>& value) {
  const auto found = object.find(key);
  value = found == object.end() ? std::nullopt : std::optional(found->get<double>());
}

// The setting that an earlier record is of; unset if this study has none like it.
std::optional<std::size_t> setting_of(const Study& study, const nlohmann::json& record) {
  for (std::size_t s = 0; s < study.settings.size(); ++s) {
    const bool same = record.at("label") == study.settings[s].label && record.at("setting") == setting_text(study.settings[s].attention);
    if (same) return s;
  }
  return {};
}

VideoRow read_video(const nlohmann::json& record) {
  VideoRow row;
  row.prompt = record.at("prompt").get<std::string>();
  row.seed = record.at("seed").get<std::uint64_t>();
  video_numbers(row, [&](const char* key, auto& value) { read(record, key, value); });
  return row;
}

std::string csv_field(const Json& value) {
  std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string out(1, '"');
  for (const char c : text) out.append(c == '"' ? 2 : 1, c);
  return out.append(1, '"');
}

}  // namespace

std::string to_json(const Study& study, const StudyInfo& info) {
  Json json;
  json["captures"] = Json::array();
  for (const CaptureRow& row : study.captures) json["captures"].push_back(capture_record(study, row));
  json["videos"] = Json::array();
  for (const VideoSummary& summary : summarise_videos(study)) json["videos"].push_back(video_record(study, summary));
  if (const std::optional<DenseSummary> dense = summarise_dense(study)) {
    json["dense"] = {{"seconds", dense->seconds}, {"attention_share", dense->attention_share}, {"attention_bound", dense->bound()}};
  }
  json["unreached"] = Json::array();
  for (const Unreached& missing : study.unreached) {
    json["unreached"].push_back({{"label", missing.label}, {"target_density", missing.target}, {"closest_density", missing.closest}});
  }
  json["generation"] = generation_record(info);
  json["video_runs"] = Json::array();
  for (const VideoRow& row : study.videos) json["video_runs"].push_back(video_run(study, row));
  json["machine"] = {{"cpu", cpu_name()}, {"isa", isa_names()}, {"threads", num_threads()}};
  json["program"] = info.program;
  json["version"] = version();
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

int take_over_videos(Study& study, const StudyInfo& info, std::string_view text, const std::string& name) {
  const nlohmann::json json = parse_json(text, name, "compare");
  int taken = 0;
  try {
    if (json.at("program") != info.program || json.at("generation") != nlohmann::json(generation_record(info))) return 0;
    for (const nlohmann::json& record : json.at("video_runs")) {
      const std::optional<std::size_t> setting = setting_of(study, record);
      if (!setting) continue;
      VideoRow row = read_video(record);
      row.setting = *setting;
      study.videos.push_back(std::move(row));
      ++taken;
    }
  } catch (const nlohmann::json::exception&) {
    throw Error("compare", name + ": expected a report of winnow compare");
  }
  return taken;
}

std::string generation_text(const StudyInfo& info) { return generation_record(info).dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string to_csv(const Study& study) {
  static constexpr std::array<const char*, 18> kColumns = {
      "capture",     "label",      "method",     "setting",        "target_density", "density",           "rel_l1",  "rel_l2",  "cosine",
      "mass_recall", "set_recall", "plan_share", "kernel_speedup", "speedup",        "attention_speedup", "seconds", "psnr_db", "ssim"};
  std::string text = "kind";
  for (const char* column : kColumns) text.append(",").append(column);
  text += "\n";
  const auto add = [&](const char* kind, const Json& record) {
    text += kind;
    for (const char* column : kColumns) text.append(",").append(record.contains(column) ? csv_field(record.at(column)) : "");
    text += "\n";
  };
  for (const CaptureRow& row : study.captures) add("capture", capture_record(study, row));
  for (const VideoSummary& summary : summarise_videos(study)) add("video", video_record(study, summary));
  return text;
}

std::string program_fingerprint() { return file_fingerprint("/proc/self/exe", "compare"); }

}  // namespace winnow::report
