// winnow info: what this program and this machine can do.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "cli/help.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "core/env.h"
#include "device/cpu/features.h"
#include "report/machine.h"
#include "report/measure_costs.h"
#include "winnow/attend.h"
#include "winnow/cuda.h"
#include "winnow/threads.h"
#include "winnow/version.h"

namespace winnow::cli {

namespace {

using Json = nlohmann::ordered_json;

Json executor_record(const ExecutorInfo& info) {
  Json json;
  json["name"] = info.name;
  json["isa"] = info.isa;
  json["device"] = info.device == Device::cpu ? "cpu" : "cuda";
  json["available"] = info.available;
  if (!info.available) json["why_not"] = info.why_not;
  json["dtypes"] = Json::array();
  for (const DType dtype : info.dtypes) json["dtypes"].push_back(dtype_name(dtype));
  json["computes_in"] = info.computes_in;
  json["max_head_dim"] = info.max_head_dim;
  if (!info.head_dims.empty()) json["head_dims"] = info.head_dims;
  if (info.alignment > 1) json["alignment"] = info.alignment;
  if (!info.requirements.empty()) json["requirements"] = info.requirements;
  json["skip_granule"] = {{"rows", info.skip_rows}, {"keys", info.skip_keys}};
  return json;
}

Json collect(bool measure) {
  Json json;
  json["version"] = version();
  json["cpu"] = cpu_name();
  json["isa"] = report::isa_names();
  json["cores"] = std::thread::hardware_concurrency();
  json["threads"] = num_threads();
  const std::vector<ExecutorInfo> infos = executors();
  if (const std::string forced = env::executor(); !forced.empty()) {
    json["forced_executor"] = forced;
    const auto found = std::find_if(infos.begin(), infos.end(), [&](const ExecutorInfo& info) { return info.name == forced; });
    const std::string problem = found == infos.end() ? "names none of the executors below" : found->why_not;
    if (!problem.empty()) json["forced_executor_problem"] = problem;
  }
  json["gpus"] = Json::array();
  for (const GpuInfo& gpu : gpus()) {
    json["gpus"].push_back({{"name", gpu.name}, {"compute_capability", std::to_string(gpu.major) + "." + std::to_string(gpu.minor)}});
  }
  if (const report::ProfileState profile = report::profile_state(); !profile.path.empty()) {
    json["profile"]["path"] = profile.path;
    if (!profile.problem.empty()) json["profile"]["problem"] = profile.problem;
  }
  json["executors"] = Json::array();
  for (const ExecutorInfo& info : infos) json["executors"].push_back(executor_record(info));
  if (!measure) return json;
  json["peak_tflops_per_thread"] = Json::object();
  for (const report::Peak& peak : report::measure_peaks()) json["peak_tflops_per_thread"][peak.name] = peak.flops_per_second * 1e-12;
  return json;
}

std::string join(const Json& list) {
  std::string text;
  for (const Json& item : list) text += (text.empty() ? "" : ", ") + item.get<std::string>();
  return text;
}

std::string head_dims(const Json& e) {
  if (!e.contains("head_dims")) return "<= " + std::to_string(e["max_head_dim"].get<int>());
  std::string text;
  for (const Json& d : e["head_dims"]) text += (text.empty() ? "" : " or ") + std::to_string(d.get<int>());
  return text;
}

void print_executors(const Json& json) {
  std::printf("\nexecutors, in order of preference:\n");
  for (const Json& e : json["executors"]) {
    const bool available = e["available"].get<bool>();
    std::printf("  %-14s %-10s %s; takes %s; head dim %s; skips %d rows x %d keys\n", e["name"].get<std::string>().c_str(),
                available ? "available" : "no", e["computes_in"].get<std::string>().c_str(), join(e["dtypes"]).c_str(),
                head_dims(e).c_str(), e["skip_granule"]["rows"].get<int>(), e["skip_granule"]["keys"].get<int>());
    if (e.contains("requirements")) {
      std::printf("  %-14s            on a GPU of %s; addresses and strides multiples of %d bytes\n", "",
                  e["requirements"].get<std::string>().c_str(), e["alignment"].get<int>());
    }
    if (!available) std::printf("  %-14s            %s\n", "", e["why_not"].get<std::string>().c_str());
  }
}

void print_costs(const Json& costs) {
  std::printf("\nplanning pays from so many tokens on (self-attention, 2 heads of 128, density 0.5):\n");
  for (const Json& line : costs["lines"]) {
    if (!line.contains("break_even_tokens")) continue;
    const auto tokens = line["break_even_tokens"].get<std::int64_t>();
    std::printf("  %-14s %-12s %s\n", line["executor"].get<std::string>().c_str(), line["method"].get<std::string>().c_str(),
                tokens == 0 ? "never" : std::to_string(tokens).c_str());
  }
  if (costs["worst_error"].get<double>() > 0.3) {
    std::printf("the fitted costs are up to %.0f%% off what was measured: was the machine busy? Then measure again.\n",
                100.0 * costs["worst_error"].get<double>());
  }
  std::printf("written to %s\n", one_line(costs["profile"].get<std::string>()).c_str());
}

void print_text(const Json& json) {
  std::printf("winnow     %s\n", json["version"].get<std::string>().c_str());
  std::printf("cpu        %s, %u cores, %d threads used\n", json["cpu"].get<std::string>().c_str(), json["cores"].get<unsigned>(),
              json["threads"].get<int>());
  const std::string isa = join(json["isa"]);
  std::printf("isa        %s\n", isa.empty() ? "none that Winnow has special code for" : isa.c_str());
  for (const Json& gpu : json["gpus"]) {
    std::printf("gpu        %s, compute capability %s\n", gpu["name"].get<std::string>().c_str(),
                gpu["compute_capability"].get<std::string>().c_str());
  }
  if (json.contains("peak_tflops_per_thread")) {
    for (const auto& [name, value] : json["peak_tflops_per_thread"].items()) {
      std::printf("peak       %s: %.3f TFLOP/s per thread, measured\n", name.c_str(), value.get<double>());
    }
  }
  if (json.contains("forced_executor")) {
    const std::string problem = json.value("forced_executor_problem", "");
    std::printf("forced     %s (WINNOW_EXECUTOR)%s\n", one_line(json["forced_executor"].get<std::string>()).c_str(),
                problem.empty() ? "" : (": " + problem + ", every call will fail").c_str());
  }
  if (json.contains("profile")) {
    const Json& profile = json["profile"];
    std::printf("profile    %s\n", one_line(profile["path"].get<std::string>()).c_str());
    if (profile.contains("problem")) std::printf("           not used: %s\n", one_line(profile["problem"].get<std::string>()).c_str());
  }
  print_executors(json);
  if (json.contains("costs")) print_costs(json["costs"]);
}

Json costs_json(const report::MeasuredCosts& costs, const std::string& path) {
  Json json = {{"profile", path}, {"threads", costs.profile.threads}, {"worst_error", 0.0}, {"lines", Json::array()}};
  for (const report::MeasuredCosts::Line& line : costs.lines) {
    Json record = {{"executor", line.executor}, {"worst_error", line.worst_error}};
    if (!line.method.empty()) {
      record["method"] = line.method;
      record["break_even_tokens"] = line.break_even;
    }
    json["worst_error"] = std::max(json["worst_error"].get<double>(), line.worst_error);
    json["lines"].push_back(record);
  }
  return json;
}

report::MeasuredCosts measure(const std::string& path) {
  const bool is_terminal = ::isatty(STDERR_FILENO) == 1;
  report::MeasuredCosts costs = report::measure_costs([&](const std::string& what) {
    if (is_terminal) std::fprintf(stderr, "\rmeasuring %s\x1b[K", what.c_str());
    return interrupt_signal() == 0;
  });
  if (is_terminal) std::fprintf(stderr, "\r\x1b[K");
  costs.profile.save(path);
  return costs;
}

}  // namespace

void add_info(CLI::App& app, Action& action) {
  struct Flags {
    bool json = false;
    bool no_peak = false;
    bool measure = false;
    std::string profile;
    int threads = 0;
  };
  CLI::App* command = app.add_subcommand("info", "Show the version, the processor, the executors and measured peaks");
  const auto flags = std::make_shared<Flags>();
  command->add_flag("--json", flags->json, "Print JSON");
  command->add_flag("--no-peak", flags->no_peak, "Skip measuring the peaks, which takes about a second");
  CLI::Option* costs = command->add_flag("--measure", flags->measure,
                                         "Measure what attention and planning cost, about half a minute, and write the profile by which "
                                         "calls run dense whose planning would not pay");
  command->add_option("--profile", flags->profile, "Where to; default: WINNOW_PROFILE, else winnow/profile.json in the user's cache folder")
      ->needs(costs)
      ->type_name("FILE");
  command->add_option("--threads", flags->threads, "CPU threads; 0 = one per core, or WINNOW_THREADS")
      ->check(in_range(0, 4096))
      ->type_name("N");
  command->footer("WINNOW_EXECUTOR=NAME forces one of the executors listed here.");
  command->callback([flags, &action] {
    action = [flags] {
      if (flags->threads != 0) set_num_threads(flags->threads);
      const std::string profile = flags->measure ? report::place_for_profile(flags->profile) : "";
      Json json = collect(!flags->no_peak);
      if (flags->measure) json["costs"] = costs_json(measure(profile), profile);
      if (flags->json) {
        std::printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
      } else {
        print_text(json);
      }
    };
  });
}

}  // namespace winnow::cli
