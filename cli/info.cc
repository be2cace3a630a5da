// winnow info: what this program and this machine can do.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "cli/help.h"
#include "cli/terminal.h"
#include "core/env.h"
#include "device/cpu/features.h"
#include "report/machine.h"
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
  print_executors(json);
}

}  // namespace

void add_info(CLI::App& app, Action& action) {
  struct Flags {
    bool json = false;
    bool no_peak = false;
    int threads = 0;
  };
  CLI::App* command = app.add_subcommand("info", "Show the version, the processor, the executors and measured peaks");
  const auto flags = std::make_shared<Flags>();
  command->add_flag("--json", flags->json, "Print JSON");
  command->add_flag("--no-peak", flags->no_peak, "Skip measuring the peaks, which takes about a second");
  command->add_option("--threads", flags->threads, "CPU threads; 0 = one per core, or WINNOW_THREADS")
      ->check(in_range(0, 4096))
      ->type_name("N");
  command->footer("WINNOW_EXECUTOR=NAME forces one of the executors listed here.");
  command->callback([flags, &action] {
    action = [flags] {
      if (flags->threads != 0) set_num_threads(flags->threads);
      const Json json = collect(!flags->no_peak);
      if (flags->json) {
        std::printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
      } else {
        print_text(json);
      }
    };
  });
}

}  // namespace winnow::cli
