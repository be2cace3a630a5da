// winnow attend: one attention call on captured q, k, v: error, density, recall, time.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/file_names.h"
#include "cli/generate_flags.h"
#include "cli/help.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "core/numeric.h"
#include "core/partial_file.h"
#include "core/safetensors.h"
#include "core/text.h"
#include "report/attention_call.h"
#include "report/capture.h"
#include "winnow/error.h"
#include "winnow/threads.h"
#include "winnow/workspace.h"

namespace winnow::cli {

namespace {

constexpr const char* kFooter =
    R"(Tensors are [S,H,D] or [B,S,H,D] in f32, f16 or bf16. Errors are those of the output rows against f64 attention;
"dense" is dense attention on the same executor. Times are medians in milliseconds; speed-up includes planning. Gates are ignored.
With --device cuda the inputs (bf16 or f16, D 64 or 128) are copied to the GPU, whose own clock gives the kernel's and dense's times;
the CPU makes the plan, and the speed-up is the kernel's alone.

Examples:
  winnow attend --qkv qkv_low_layer5.safetensors --method mean_pool
  winnow attend --qkv qkv.safetensors --prefix layer5. --method '{"method":"skip_softmax","threshold":1e-3}' --json out.json
  winnow attend --qkv qkv.safetensors --grid 21x30x52 --method window
  winnow attend --qkv qkv.safetensors --device cuda --method '{"method":"mean_pool","cdf":0.8}'
  winnow attend --qkv qkv.safetensors --keys query,key,value --method '{"method":"oracle","density":0.25}' --save-plan plan.safetensors)";

struct AttendFlags {
  std::string qkv, prefix, grid, method = "mean_pool", plan, plan_blocks, device = "cpu", json, save_plan;
  std::vector<std::string> keys;
  int rows = 256, repeat = 20, threads = 0;
  bool no_recall = false;
};

// Names of q, k and v in the file: as given, or the only triple PREFIXq, PREFIXk, PREFIXv.
std::array<std::string, 3> find_keys(const AttendFlags& flags) {
  if (!flags.keys.empty()) return {flags.keys[0], flags.keys[1], flags.keys[2]};
  if (!flags.prefix.empty()) return {flags.prefix + "q", flags.prefix + "k", flags.prefix + "v"};
  const SafetensorsFile file = SafetensorsFile::open(flags.qkv);
  std::vector<std::string> prefixes;
  std::string names;
  for (const std::string& key : file.keys()) {
    names += (names.empty() ? "" : ", ") + key;
    if (key.back() != 'q') continue;
    const std::string prefix = key.substr(0, key.size() - 1);
    if (file.contains(prefix + "k") && file.contains(prefix + "v")) prefixes.push_back(prefix);
  }
  if (prefixes.size() == 1) return {prefixes[0] + "q", prefixes[0] + "k", prefixes[0] + "v"};
  throw Error("attend", file.name() + ": expected one triple of tensors named q, k, v with a common prefix, found " +
                            std::to_string(prefixes.size()) + " among " + names + "; choose with --prefix or --keys");
}

// Where the tokens are: as --grid says, else as the file does.
void set_grid(report::Capture& capture, const std::string& text) {
  if (text.empty()) return;
  const std::int64_t tokens = capture.q.view().size(1);
  const std::optional<Grid> grid = report::read_grid(text);
  if (!grid || grid->tokens() != tokens) {
    throw Error("attend", "grid: expected FxHxW with " + std::to_string(tokens) + " tokens, got \"" + text + "\"");
  }
  capture.context.grid = *grid;
}

// What looks at positions needs to know them.
void check_grid(const report::Capture& capture, const AttentionConfig& config) {
  const bool looks = std::holds_alternative<Window>(config.method) || config.tokens.token_order == TokenOrder::cubes;
  if (!looks || capture.context.grid.known()) return;
  throw Error("attend", std::string(std::holds_alternative<Window>(config.method) ? "window" : "token_order cubes") +
                            ": expected the grid of the tokens in " + capture.name +
                            " (winnow capture writes it) or in --grid, found none");
}

// Of --device: unset for the CPU.
std::optional<int> gpu_of(const std::string& device) {
  if (device == "cpu") return {};
  if (device == "cuda") return 0;
  int gpu = 0;
  const char* const end = device.data() + device.size();
  if (device.starts_with("cuda:")) {
    const auto [stop, error] = std::from_chars(device.data() + 5, end, gpu);
    if (error == std::errc() && stop == end && gpu >= 0) return gpu;
  }
  throw Error("attend", "device: expected cpu, cuda or cuda:N, got " + device);
}

template <class T>
std::int64_t count_non_finite(const TensorView& x) {
  const T* values = x.as<T>();
  return std::count_if(values, values + x.numel(), [](T value) { return !std::isfinite(to_f32(value)); });
}

std::int64_t count_non_finite(const TensorView& x) {
  if (x.dtype == DType::f32) return count_non_finite<float>(x);
  return x.dtype == DType::f16 ? count_non_finite<f16>(x) : count_non_finite<bf16>(x);
}

// Attention passes them on, as IEEE says, so that they are no fault of a method.
void note_non_finite(const AttentionInputs& call) {
  const std::int64_t count = count_non_finite(call.q) + count_non_finite(call.k) + count_non_finite(call.v);
  if (count == 0) return;
  std::fprintf(stderr, "winnow: note: q, k, v: %s NaN or infinite, and so is what attention makes of %s\n",
               (counted(count, "value") + (count == 1 ? " is" : " are")).c_str(), count == 1 ? "it" : "them");
}

void print_errors(const char* name, const report::CallErrors& errors) {
  const auto plain = [](double x) { return std::isnan(x) ? std::abs(x) : x; };  // "nan", not "-nan"
  std::printf("%-14s rel-L1 %.3e   rel-L2 %.3e   cosine %.6f\n", name, plain(errors.rel_l1), plain(errors.rel_l2), plain(errors.cosine));
}

void print_result(const AttentionConfig& config, const report::CallMeasurement& m, bool on_gpu) {
  std::printf("%-14s %s\n", "method", to_json(config).c_str());
  std::printf("%-14s %s\n", "executor", m.executor.c_str());
  std::printf("%-14s %.4f", "density", m.density);
  if (std::holds_alternative<CosineGate>(config.method)) std::printf("   forced dense %.4f", m.gated_share());
  std::printf("\n");
  print_errors("error", m.errors);
  print_errors("dense error", m.dense_errors);
  std::printf("%-14s %lld query rows of every head, against f64\n", "", static_cast<long long>(m.rows));
  if (m.mass_recall) std::printf("%-14s mass %.4f", "recall", *m.mass_recall);
  if (m.set_recall) std::printf("   set %.4f", *m.set_recall);
  if (m.mass_recall) std::printf("\n");
  if (on_gpu) {
    std::printf("%-14s kernel %.3f ms   dense %.3f ms   speed-up %.2fx   plan, by the CPU, %.3f ms   median of %d\n", "time",
                1e3 * m.kernel_seconds, 1e3 * m.dense_seconds, m.kernel_speedup(), 1e3 * m.plan_seconds, m.repeat);
    return;
  }
  std::printf("%-14s kernel %.3f ms + plan %.3f ms (%.1f%% of dense) = %.3f ms   dense %.3f ms   speed-up %.2fx   median of %d\n", "time",
              1e3 * m.kernel_seconds, 1e3 * m.plan_seconds, 100.0 * m.plan_share(), 1e3 * m.total_seconds(), 1e3 * m.dense_seconds,
              m.speedup(), m.repeat);
}

std::string result_json(const AttendFlags& flags, const AttentionConfig& config, const TensorView& q, const TensorView& k,
                        const report::CallMeasurement& m) {
  // JSON has no infinity or NaN: what is not finite is left out.
  const auto errors = [](const report::CallErrors& e) {
    nlohmann::ordered_json record = nlohmann::ordered_json::object();
    for (const auto& [key, value] : {std::pair("rel_l1", e.rel_l1), std::pair("rel_l2", e.rel_l2), std::pair("cosine", e.cosine)}) {
      if (std::isfinite(value)) record[key] = value;
    }
    return record;
  };
  nlohmann::ordered_json json;
  json["qkv"] = flags.qkv;
  json["q"] = q.describe();
  json["k"] = k.describe();
  json["method"] = config.method_name();
  json["setting"] = to_json(config);
  json["executor"] = m.executor;
  json["device"] = flags.device;
  json["threads"] = num_threads();
  json["density"] = m.density;
  if (std::holds_alternative<CosineGate>(config.method)) json["gated_share"] = m.gated_share();
  json["rows"] = m.rows;
  json["error"] = errors(m.errors);
  json["dense_error"] = errors(m.dense_errors);
  if (m.mass_recall) json["recall"]["mass"] = *m.mass_recall;
  if (m.set_recall) json["recall"]["set"] = *m.set_recall;
  json["repeat"] = m.repeat;
  json["kernel_seconds"] = m.kernel_seconds;
  json["plan_seconds"] = m.plan_seconds;
  json["plan_share"] = m.plan_share();
  json["total_seconds"] = m.total_seconds();
  json["dense_seconds"] = m.dense_seconds;
  json["kernel_speedup"] = m.kernel_speedup();
  json["speedup"] = m.speedup();
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void save_plan(const std::string& path, const AttentionConfig& config, const AttentionInputs& call) {
  Workspace ws;
  report::plan_of(call, config, ws).value().save(path);
}

void attend_command(const AttendFlags& flags) {
  if (!flags.keys.empty() && flags.keys.size() != 3) {
    throw CLI::ValidationError("--keys", "expected three names, got " + std::to_string(flags.keys.size()));
  }
  AttentionConfig config;
  if (flags.plan.empty()) {
    config = parse_attention_config(flags.method);
  } else {
    config.method = plan_setting(flags.plan, flags.plan_blocks);
    config.validate();
  }
  report::check_single_call(config);
  if (!flags.save_plan.empty() && !report::makes_plan(config)) {
    throw Error("attend", std::string("save-plan: ") + config.method_name() + " has no plan of its own to save");
  }
  report::CallOptions options;
  options.gpu = gpu_of(flags.device);
  if (options.gpu) report::check_gpu(*options.gpu);  // before anything slow
  FileNames names("attend");
  names.read(flags.qkv, "--qkv");
  names.read(flags.plan, "--plan");
  if (flags.plan.empty()) names.read_setting(flags.method, "--method");
  names.write(flags.json, "--json");
  names.write(flags.save_plan, "--save-plan");
  if (!flags.json.empty()) check_writable("attend", flags.json);
  if (!flags.save_plan.empty()) check_writable("attend", flags.save_plan);
  if (flags.threads != 0) set_num_threads(flags.threads);
  report::Capture capture = report::load_capture(flags.qkv, find_keys(flags));
  set_grid(capture, flags.grid);
  check_grid(capture, config);
  const AttentionInputs call = capture.inputs();
  note_non_finite(call);
  options.repeat = flags.repeat;
  options.recall = !flags.no_recall;
  options.progress = [](const ProgressEvent&) { return interrupt_signal() == 0; };
  const report::CallMeasurement measurement = report::measure_call(call, report::exact_rows(call, flags.rows), config, options);
  if (!flags.save_plan.empty()) save_plan(flags.save_plan, config, call);
  if (!flags.json.empty()) write_text_file("attend", flags.json, result_json(flags, config, call.q, call.k, measurement));
  std::printf("%-14s %s: q %s  k %s\n", "input", flags.qkv.c_str(), call.q.describe().c_str(), call.k.describe().c_str());
  print_result(config, measurement, options.gpu.has_value());
}

}  // namespace

void add_attend(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("attend", "Measure one attention call on captured q, k, v");
  const auto flags = std::make_shared<AttendFlags>();
  command->add_option("--qkv", flags->qkv, "Safetensors file with q, k and v")->required()->type_name("FILE");
  CLI::Option* keys = add_list(*command, "--keys", flags->keys, "Names of the three tensors", {})->type_name("Q,K,V");
  command->add_option("--prefix", flags->prefix, "What their names begin with, before q, k and v; found out if there is one triple only")
      ->excludes(keys)
      ->type_name("TEXT");
  command->add_option("--grid", flags->grid, "Frames, rows and columns of the tokens; default: what the file says")->type_name("FxHxW");
  CLI::Option* method = command->add_option("--method,--attention", flags->method, "Method name, JSON file or JSON text")
                            ->capture_default_str()
                            ->type_name("NAME|FILE|JSON");
  add_plan_flags(*command, method, flags->plan, flags->plan_blocks, method->get_group());
  command->add_option("--device", flags->device, "Where to run: cpu, cuda, or cuda:N for another GPU than the first")
      ->capture_default_str()
      ->type_name("PLACE");
  command->add_option("--rows", flags->rows, "Query rows compared with the f64 reference")
      ->check(at_least_one())
      ->capture_default_str()
      ->type_name("N");
  command->add_option("--repeat", flags->repeat, "Timed calls, at most 20 seconds of them")
      ->check(at_least_one())
      ->capture_default_str()
      ->type_name("N");
  command->add_option("--threads", flags->threads, "CPU threads; 0 = one per core, or WINNOW_THREADS")
      ->check(in_range(0, 4096))
      ->type_name("N");
  command->add_flag("--no-recall", flags->no_recall, "Skip recall, which costs a dense f32 pass");
  command->add_option("--json", flags->json, "Write the numbers as JSON")->type_name("FILE");
  command->add_option("--save-plan", flags->save_plan, "Save the tile plan, for generate --plan")->type_name("FILE");
  command->footer(kFooter);
  command->callback([flags, &action] { action = [flags] { attend_command(*flags); }; });
}

}  // namespace winnow::cli
