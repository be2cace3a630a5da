#include "calib/cost_profile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>

#include "calib/json_fields.h"
#include "core/env.h"
#include "core/json.h"
#include "core/partial_file.h"
#include "core/text.h"
#include "device/cpu/features.h"
#include "winnow/error.h"
#include "winnow/threads.h"
#include "winnow/version.h"

namespace winnow {

namespace {

namespace fs = std::filesystem;

constexpr const char* kOperation = "profile";
constexpr const char* kFormat = "winnow.cost_profile";
constexpr int kTerms = 4;

using Terms = std::array<double, kTerms>;

Terms terms_of(const CostWork& work) { return {1.0, work.values, work.pairs, work.products}; }

// Least squares over the terms in `used`, of samples scaled to a time of 1. Empty if they depend on each other.
std::optional<Terms> solve(std::span<const CostSample> samples, const std::vector<int>& used) {
  const std::size_t n = used.size();
  std::array<std::array<double, kTerms + 1>, kTerms> m{};
  Terms scale{};  // columns to length 1: they differ by ten orders of magnitude
  for (const CostSample& sample : samples) {
    for (std::size_t i = 0; i < n; ++i) {
      const double x = terms_of(sample.work)[static_cast<std::size_t>(used[i])] / sample.seconds;
      scale[i] += x * x;
    }
  }
  for (std::size_t i = 0; i < n; ++i) scale[i] = std::sqrt(scale[i]);
  for (const CostSample& sample : samples) {
    Terms row{};
    for (std::size_t i = 0; i < n; ++i) row[i] = terms_of(sample.work)[static_cast<std::size_t>(used[i])] / sample.seconds / scale[i];
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) m[i][j] += row[i] * row[j];
      m[i][n] += row[i];
    }
  }
  for (std::size_t i = 0; i < n; ++i) {  // Gauss; the matrix is positive definite
    if (!(m[i][i] > 1e-12)) return std::nullopt;
    for (std::size_t r = 0; r < n; ++r) {
      if (r == i) continue;
      const double factor = m[r][i] / m[i][i];
      for (std::size_t c = i; c <= n; ++c) m[r][c] -= factor * m[i][c];
    }
  }
  Terms out{};
  for (std::size_t i = 0; i < n; ++i) out[static_cast<std::size_t>(used[i])] = m[i][n] / m[i][i] / scale[i];
  return out;
}

double squared_error(const CostLine& line, std::span<const CostSample> samples) {
  double sum = 0.0;
  for (const CostSample& sample : samples) {
    const double relative = line.seconds(sample.work) / sample.seconds - 1.0;
    sum += relative * relative;
  }
  return sum;
}

CostLine read_line(JsonFields fields) {
  constexpr double kMost = 1e6;  // seconds
  CostLine line;
  line.per_call = fields.number("seconds_per_call", 0.0, kMost);
  line.per_value = fields.number("seconds_per_value", 0.0, kMost);
  line.per_pair = fields.number("seconds_per_pair", 0.0, kMost);
  line.per_product = fields.number("seconds_per_product", 0.0, kMost);
  fields.finish();
  return line;
}

nlohmann::ordered_json line_json(const CostLine& line) {
  return {{"seconds_per_call", line.per_call},
          {"seconds_per_value", line.per_value},
          {"seconds_per_pair", line.per_pair},
          {"seconds_per_product", line.per_product}};
}

void check_same(const JsonFields& fields, const char* key, const std::string& expected, const std::string& found) {
  if (found != expected) fields.fail(key, expected + ", as here (winnow info --measure makes a new one)", found);
}

}  // namespace

// Of the few subsets of terms, the best one whose coefficients are all >= 0 is the constrained optimum.
CostLine fit_cost(std::span<const CostSample> samples) {
  if (samples.empty()) throw Error(kOperation, "expected measured calls, got none");
  for (const CostSample& sample : samples) {
    if (!(sample.seconds > 0.0) || !std::isfinite(sample.seconds)) {
      throw Error(kOperation, "expected measured times above 0, got " + short_number(sample.seconds));
    }
  }
  CostLine best;
  double least = std::numeric_limits<double>::infinity();
  for (unsigned subset = 1; subset < (1U << kTerms); ++subset) {
    std::vector<int> used;
    for (int term = 0; term < kTerms; ++term) {
      if ((subset >> static_cast<unsigned>(term) & 1U) != 0) used.push_back(term);
    }
    if (used.size() > samples.size()) continue;
    const std::optional<Terms> found = solve(samples, used);
    if (!found || std::any_of(found->begin(), found->end(), [](double x) { return !(x >= 0.0); })) continue;
    const CostLine line{(*found)[0], (*found)[1], (*found)[2], (*found)[3]};
    if (const double error = squared_error(line, samples); error < least) {
      least = error;
      best = line;
    }
  }
  return best;
}

double worst_error(const CostLine& line, std::span<const CostSample> samples) {
  double worst = 0.0;
  for (const CostSample& sample : samples) worst = std::max(worst, std::abs(line.seconds(sample.work) / sample.seconds - 1.0));
  return worst;
}

CostProfile CostProfile::of_this_machine() {
  return {.version = winnow::version(), .cpu = cpu_name(), .threads = num_threads(), .executors = {}};
}

const ExecutorCosts* CostProfile::find(const std::string& executor) const {
  const auto found = std::find_if(executors.begin(), executors.end(), [&](const ExecutorCosts& costs) { return costs.name == executor; });
  return found == executors.end() ? nullptr : &*found;
}

CostProfile CostProfile::load(const std::string& path) {
  const nlohmann::json json = parse_json(read_text_file(path, kOperation, std::size_t{1} << 20U), path, kOperation);
  JsonFields fields(json, kOperation, path);
  check_same(fields, "format", kFormat, fields.text("format"));
  CostProfile profile;
  profile.version = fields.text("version");
  check_same(fields, "version", winnow::version(), profile.version);
  profile.cpu = fields.text("cpu");
  check_same(fields, "cpu", cpu_name(), profile.cpu);
  profile.threads = static_cast<int>(fields.integer("threads", 1, 4096));
  JsonFields executors = fields.object("executors");
  for (const std::string& name : executors.keys()) {
    JsonFields entry = executors.object(name.c_str());
    ExecutorCosts costs{.name = name, .attend = read_line(entry.object("attend")), .planning = {}};
    JsonFields planning = entry.object("planning");
    for (const std::string& method : planning.keys()) costs.planning[method] = read_line(planning.object(method.c_str()));
    planning.finish();
    entry.finish();
    profile.executors.push_back(std::move(costs));
  }
  executors.finish();
  fields.finish();
  return profile;
}

void CostProfile::save(const std::string& path) const {
  nlohmann::ordered_json json = {{"format", kFormat}, {"version", version}, {"cpu", cpu}, {"threads", threads}};
  json["executors"] = nlohmann::ordered_json::object();
  for (const ExecutorCosts& costs : executors) {
    nlohmann::ordered_json entry = {{"attend", line_json(costs.attend)}, {"planning", nlohmann::ordered_json::object()}};
    for (const auto& [method, line] : costs.planning) entry["planning"][method] = line_json(line);
    json["executors"][costs.name] = std::move(entry);
  }
  write_text_file(kOperation, path, json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

ProfilePlace find_profile(const std::string& named) {
  constexpr const char* kNone = "none";
  const std::string name = named.empty() ? env::profile() : named;
  if (name == kNone) return {};
  if (!name.empty()) return {name, true};
  const std::string cache = env::cache_folder();
  return {cache.empty() ? "" : (fs::path(cache) / "winnow" / "profile.json").string(), false};
}

}  // namespace winnow
