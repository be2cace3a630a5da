// The calibration file, ModelOpt's, and factors.
#include "calib/skip_softmax.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "calib/json_fields.h"
#include "core/fingerprint.h"
#include "core/json.h"
#include "core/partial_file.h"
#include "core/text.h"
#include "winnow/error.h"

namespace winnow {

namespace {

namespace fs = std::filesystem;

constexpr const char* kOperation = "calibration";
constexpr const char* kFormat = "winnow.skip_softmax_calibration";
constexpr const char* kExperts[] = {"high", "low"};
constexpr const char* kComponents[] = {"transformer", "transformer_2"};
constexpr double kLargest = 1e300;

SkipCalibration::Expert read_expert(JsonFields fields) {
  SkipCalibration::Expert expert;
  expert.a = fields.number("a", std::numeric_limits<double>::min(), kLargest);
  expert.b = fields.number("b", 0.0, 1e3);
  expert.r2 = fields.number("r2", -kLargest, 1.0);
  expert.lowest = fields.number("lowest_sparsity", 0.0, 1.0);
  expert.highest = fields.number("highest_sparsity", *expert.lowest, 1.0);
  fields.finish();
  return expert;
}

SkipCalibration read_winnow(const nlohmann::json& json, const std::string& name) {
  JsonFields fields(json, kOperation, name);
  SkipCalibration calibration;
  fields.check_format(kFormat);
  calibration.model = fields.text("model");
  calibration.tokens = fields.integer("tokens", 1, std::int64_t{1} << 40);
  JsonFields executor = fields.object("executor");
  calibration.executor = executor.text("name");
  calibration.rows = static_cast<int>(executor.integer("rows", 1, 65536));
  calibration.keys = static_cast<int>(executor.integer("keys", 1, 65536));
  if (executor.text("order") != "ascending") executor.fail("order", "ascending", fields.value("executor").at("order"));
  executor.finish();
  JsonFields experts = fields.object("experts");
  for (const char* expert : kExperts) {
    if (experts.has(expert)) {
      calibration.experts.emplace_back(read_expert(experts.object(expert)));
    } else {
      calibration.experts.emplace_back();
    }
  }
  experts.finish();
  fields.finish();
  return calibration;
}

// Layers whose self-attention one of the fnmatch patterns names.
std::vector<int> ignored_layers(const nlohmann::json& patterns, const JsonFields& group) {
  constexpr int kMostLayers = 1024;
  std::vector<int> layers;
  if (!patterns.is_array()) group.fail("ignore", "a list of patterns", patterns);
  for (const nlohmann::json& pattern : patterns) {
    if (!pattern.is_string()) group.fail("ignore", "a list of patterns", patterns);
    const auto text = pattern.get<std::string>();
    for (int layer = 0; layer < kMostLayers; ++layer) {
      const std::string name = "blocks." + std::to_string(layer) + ".attn1";
      bool hit = ::fnmatch(text.c_str(), name.c_str(), 0) == 0;
      for (const char* component : kComponents) hit = hit || ::fnmatch(text.c_str(), (component + ("." + name)).c_str(), 0) == 0;
      if (hit) layers.push_back(layer);
    }
  }
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  return layers;
}

// One group of config_groups. Fields that concern other runtimes (targets, target_sparsity, producer) are left alone.
SkipCalibration::Expert read_modelopt_group(JsonFields group) {
  SkipCalibration::Expert expert;
  JsonFields factor = group.object("threshold_scale_factor");
  // Coefficients stand by phase (a diffusion transformer only has "prefill"), under "coefficients", or beside the formula.
  JsonFields numbers = factor.has("prefill")        ? factor.object("prefill")
                       : factor.has("coefficients") ? factor.object("coefficients")
                                                    : factor;
  std::string formula = factor.has("formula") ? factor.text("formula") : "a * exp(b * target_sparsity)";
  formula.erase(std::remove(formula.begin(), formula.end(), ' '), formula.end());
  expert.b = numbers.number("b", -1e3, 1e3);
  if (formula == "a*exp(b*target_sparsity)") {
    expert.a = numbers.number("a", std::numeric_limits<double>::min(), kLargest);
  } else if (formula == "exp(log_a+b*target_sparsity)") {
    expert.a = std::exp(numbers.number("log_a", -600.0, 600.0));
  } else {
    factor.fail("formula", "a * exp(b * target_sparsity)", factor.value("formula"));
  }
  if (group.has("ignore")) expert.dense_layers = ignored_layers(group.value("ignore"), group);
  if (group.has("initial_disabled_steps")) expert.dense_steps = static_cast<int>(group.integer("initial_disabled_steps", 0, 1 << 30));
  return expert;
}

// `config` is a component's config.json, or its sparse_attention_config.
SkipCalibration::Expert read_modelopt(const nlohmann::json& config, const std::string& name) {
  JsonFields outer(config, kOperation, name);
  JsonFields sparse = outer.has("sparse_attention_config") ? outer.object("sparse_attention_config") : outer;
  JsonFields groups = sparse.object("config_groups");
  std::optional<SkipCalibration::Expert> expert;
  for (const std::string& key : groups.keys()) {
    JsonFields group = groups.object(key.c_str());
    const char* algorithm = group.has("algorithm") ? "algorithm" : "sparse_algo";
    if (!group.has(algorithm) || group.text(algorithm) != "skip_softmax") continue;
    if (expert) throw Error(kOperation, name + ": expected one group with algorithm skip_softmax, got several");
    expert = read_modelopt_group(group);
  }
  if (!expert) throw Error(kOperation, name + ": expected a group with algorithm skip_softmax, got none");
  return *expert;
}

bool holds_modelopt(const nlohmann::json& json) {
  return json.is_object() && (json.contains("sparse_attention_config") || json.contains("config_groups"));
}

SkipCalibration load_directory(const std::string& directory) {
  const fs::path own = fs::path(directory) / "calibration" / "skip-softmax.json";
  if (fs::exists(own)) return SkipCalibration::load(own.string());
  SkipCalibration calibration;
  for (const char* component : kComponents) {
    const std::string path = (fs::path(directory) / component / "config.json").string();
    calibration.experts.emplace_back();
    if (!fs::exists(path)) continue;
    const nlohmann::json json = parse_json(read_text_file(path, kOperation), path, kOperation);
    if (holds_modelopt(json)) calibration.experts.back() = read_modelopt(json, path);
  }
  if (!calibration.experts[0] && !calibration.experts[1]) {
    throw Error(
        kOperation,
        directory + ": expected calibration/skip-softmax.json, or a sparse_attention_config in transformer/config.json; got neither");
  }
  return calibration;
}

}  // namespace

SkipCalibration SkipCalibration::load(const std::string& path) {
  if (fs::is_directory(path)) return load_directory(path);
  const nlohmann::json json = parse_json(read_text_file(path, kOperation, std::size_t{1} << 20U), path, kOperation);
  SkipCalibration calibration;
  if (holds_modelopt(json)) {
    calibration.experts.emplace_back(read_modelopt(json, path));
  } else if (json.is_object() && json.contains(kComponents[0])) {
    for (const char* component : kComponents) {
      calibration.experts.emplace_back();
      if (json.contains(component)) calibration.experts.back() = read_modelopt(json.at(component), path + ": " + component);
    }
  } else {
    calibration = read_winnow(json, path);
  }
  return calibration;
}

void SkipCalibration::save(const std::string& path) const {
  nlohmann::ordered_json json;
  json["format"] = kFormat;
  json["version"] = 1;
  json["model"] = model;
  json["tokens"] = tokens;
  json["executor"] = {{"name", executor}, {"rows", rows}, {"keys", keys}, {"order", "ascending"}};
  json["experts"] = nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < experts.size(); ++i) {
    if (!experts[i]) continue;
    const Expert& e = *experts[i];
    json["experts"][kExperts[i]] = {{"a", e.a},
                                    {"b", e.b},
                                    {"r2", e.r2.value_or(0.0)},
                                    {"lowest_sparsity", e.lowest.value_or(0.0)},
                                    {"highest_sparsity", e.highest.value_or(1.0)}};
  }
  write_text_file(kOperation, path, json.dump(2) + "\n");
}

const SkipCalibration::Expert& SkipCalibration::expert(int index) const {
  const auto i = static_cast<std::size_t>(index);
  if (index < 0 || i >= experts.size() || !experts[i]) {
    throw Error(kOperation, std::string("expected an entry for the ") + (index == 1 ? "low" : "high") + "-noise expert, got none");
  }
  return *experts[i];
}

double SkipCalibration::factor(int index, double target_sparsity) const {
  const Expert& e = expert(index);
  const double lowest = e.lowest.value_or(0.0);
  const double highest = e.highest.value_or(1.0);
  if (target_sparsity < lowest || target_sparsity > highest) {
    constexpr double kShown = 1e4;  // four decimals, rounded so that what is shown is taken
    throw Error(kOperation, "target_sparsity: expected a number from " + short_number(std::ceil(lowest * kShown) / kShown) + " to " +
                                short_number(std::floor(highest * kShown) / kShown) + ", the fitted range of the " + kExperts[index] +
                                "-noise expert, got " + short_number(static_cast<float>(target_sparsity)));
  }
  return e.a * std::exp(e.b * target_sparsity);
}

std::string find_skip_calibration(const std::string& model_directory) {
  const fs::path directory(model_directory);
  const fs::path own = directory / "calibration" / "skip-softmax.json";
  if (fs::exists(own)) return own.string();
  for (const char* component : kComponents) {
    const fs::path config = directory / component / "config.json";
    if (fs::exists(config) && holds_modelopt(parse_json(read_text_file(config.string(), kOperation), config.string(), kOperation))) {
      return model_directory;
    }
  }
  return {};
}

std::string model_fingerprint(const std::string& model_directory) {
  constexpr std::size_t kEnds = std::size_t{1} << 20U;
  constexpr std::size_t kPage = 4096;
  constexpr int kPages = 64;
  Fingerprint fingerprint;
  std::vector<char> buffer(kEnds);
  for (const char* component : kComponents) {
    std::vector<fs::path> files;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(fs::path(model_directory) / component, none)) {
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    for (const fs::path& path : files) {
      std::ifstream file(path, std::ios::binary);
      if (!file) throw Error(kOperation, path.string() + ": cannot open");
      const auto size = static_cast<std::size_t>(fs::file_size(path));
      const std::string label = component + std::string("/") + path.filename().string() + " " + std::to_string(size) + "\n";
      fingerprint.add(label.data(), label.size());
      const auto sample = [&](std::size_t offset, std::size_t n) {
        n = std::min(n, size - offset);
        file.seekg(static_cast<std::streamoff>(offset));
        if (!file.read(buffer.data(), static_cast<std::streamsize>(n))) throw Error(kOperation, path.string() + ": cannot read");
        fingerprint.add(buffer.data(), n);
      };
      sample(0, kEnds);
      for (int i = 1; i <= kPages; ++i) sample(size / (kPages + 1) * static_cast<std::size_t>(i), kPage);
      sample(size - std::min(size, kEnds), kEnds);
    }
  }
  return fingerprint.text();
}

}  // namespace winnow
