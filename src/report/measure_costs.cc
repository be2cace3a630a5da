#include "report/measure_costs.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <system_error>

#include "core/options.h"
#include "core/partial_file.h"
#include "core/random.h"
#include "core/safetensors.h"
#include "exec/registry.h"
#include "run/break_even.h"
#include "run/methods.h"
#include "winnow/attend.h"
#include "winnow/error.h"
#include "winnow/workspace.h"

namespace winnow::report {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Progress = std::function<bool(const std::string&)>;

constexpr std::int64_t kHeads = 2;
constexpr double kMostSeconds = 0.5;  // of one call; larger ones are left out

struct Size {
  std::int64_t tokens, D;
};
constexpr Size kSizes[] = {{128, 128}, {512, 64}, {512, 128}, {2048, 64}, {2048, 128}, {8192, 128}};

struct Inputs {
  Tensor q, k, v, out;
  static Tensor make(DType dtype, Size size) { return {dtype, {1, size.tokens, kHeads, size.D}}; }
  Inputs(DType dtype, Size size) : q(make(dtype, size)), k(make(dtype, size)), v(make(dtype, size)), out(make(DType::f32, size)) {
    std::vector<float> values(static_cast<std::size_t>(q.numel()));
    std::uint64_t stream = 0;
    for (const Tensor* tensor : {&q, &k, &v}) {
      fill_normal(values, 11, stream++);
      convert(TensorView(values.data(), DType::f32, tensor->view().shape.data(), 4), *tensor);
    }
  }
};

template <class F>
double best_seconds(F call) {
  constexpr int kLeast = 3;
  constexpr double kLong = 0.05;
  double best = 0.0, all = 0.0;
  call();  // memory, caches
  for (int i = 0; i < kLeast || all < kLong; ++i) {
    const auto start = Clock::now();
    call();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = i == 0 ? seconds : std::min(best, seconds);
    all += seconds;
    if (i > 0 && all > 4 * kLong) break;
  }
  return best;
}

// In self-attention with 2 heads of 128 at density 0.5.
std::int64_t first_that_pays(const BreakEven& rule, const std::string& executor) {
  constexpr std::int64_t kMost = 1 << 20;
  constexpr std::int64_t kTile = 64;
  for (std::int64_t tokens = kTile; tokens <= kMost; tokens += std::max<std::int64_t>(kTile, tokens / 64 * kTile / 4)) {
    const PlanGeometry geometry{.B = 1, .H = kHeads, .Sq = tokens, .Sk = tokens};
    if (rule.pays(0, geometry, 128, kHeads, executor, 0.5)) return tokens;
  }
  return 0;
}

class ExecutorMeasurement {
 public:
  ExecutorMeasurement(const Executor& executor, const Progress& progress) : executor_(executor), progress_(progress) {}

  void run(MeasuredCosts& result) {
    costs_.name = executor_.name;
    for (const Size size : kSizes) measure(size);
    add(result, "", attention_, costs_.attend);
    for (const auto& [method, samples] : planning_) add(result, method, samples, costs_.planning[method]);
    result.profile.executors.push_back(costs_);
  }

 private:
  void tell(const std::string& what, Size size) const {
    const std::string text =
        std::string(executor_.name) + "  " + what + "  " + std::to_string(size.tokens) + " tokens of " + std::to_string(size.D);
    if (progress_ && !progress_(text)) throw Cancelled("profile");
  }

  static void add(MeasuredCosts& result, const std::string& method, const std::vector<CostSample>& samples, CostLine& line) {
    line = fit_cost(samples);
    result.lines.push_back({.executor = {}, .method = method, .worst_error = worst_error(line, samples), .break_even = 0});
  }

  void measure(Size size) {
    const PlanGeometry geometry{.B = 1, .H = kHeads, .Sq = size.tokens, .Sk = size.tokens};
    const double products = attend_work(geometry, size.D, kHeads, 1.0).products;
    if (!attention_.empty() && attention_.back().seconds / attention_.back().work.products * products > kMostSeconds) return;
    const Inputs inputs(executor_.dtypes.front(), size);
    tell("attention", size);
    measure_attention(inputs, size, MeanPool{.density = 0.25F});
    measure_attention(inputs, size, Dense{});
    for_each_alternative<Method>([&]<class Options>(const Options& options) {
      if constexpr (!std::is_same_v<Options, Oracle> && !std::is_same_v<Options, FixedPlan>) {
        if (selects_tiles(options)) measure_planning(inputs, size, options);
      }
    });
  }

  PlanSpec spec_of(Size size) const {
    PlanSpec spec;
    spec.grid = {1, 1, size.tokens};
    return spec;
  }

  void measure_attention(const Inputs& inputs, Size size, const Method& method) {
    const Workspace::Scope scope(ws_);
    const TilePlan plan = make_plan(inputs.q, inputs.k, spec_of(size), method, ws_);
    const double seconds = best_seconds([&] { attend(plan, inputs.q, inputs.k, inputs.v, inputs.out, {.executor = executor_.name}, ws_); });
    attention_.push_back({attend_work(plan.geometry(), size.D, kHeads, plan.density()), seconds});
  }

  void measure_planning(const Inputs& inputs, Size size, const Method& method) {
    const std::string name = method_name(method);
    tell(name, size);
    const PlanSpec spec = spec_of(size);
    const double seconds = best_seconds([&] {
      const Workspace::Scope scope(ws_);
      make_plan(inputs.q, inputs.k, spec, method, ws_);
    });
    planning_[name].push_back({planning_work(method, plan_geometry(inputs.q, inputs.k, spec), size.D, kHeads), seconds});
  }

  const Executor& executor_;
  const Progress& progress_;
  Workspace ws_;
  ExecutorCosts costs_;
  std::vector<CostSample> attention_;
  std::map<std::string, std::vector<CostSample>> planning_;
};

}  // namespace

MeasuredCosts measure_costs(const Progress& progress) {
  MeasuredCosts result;
  result.profile = CostProfile::of_this_machine();
  for (const Executor& executor : executor_records()) {
    if (executor.device() != Device::cpu || executor.only_by_name || !executor.missing().empty()) continue;
    const std::size_t first = result.lines.size();
    ExecutorMeasurement(executor, progress).run(result);
    for (std::size_t i = first; i < result.lines.size(); ++i) result.lines[i].executor = executor.name;
  }
  for_each_alternative<Method>([&]<class Options>(const Options& options) {
    const BreakEven rule(result.profile, options);
    for (MeasuredCosts::Line& line : result.lines) {
      if (line.method == Options::kName) line.break_even = first_that_pays(rule, line.executor);
    }
  });
  return result;
}

ProfileState profile_state() {
  ProfileState state;
  const ProfilePlace place = find_profile({});
  std::error_code error;
  if (place.path.empty() || (!place.named && !fs::exists(place.path, error))) return state;
  state.path = place.path;
  try {
    CostProfile::load(place.path);
  } catch (const Error& problem) {
    state.problem = problem.what();
  }
  return state;
}

std::string place_for_profile(const std::string& named) {
  const std::string path = find_profile(named).path;
  if (path.empty()) throw Error("profile", "expected a file to write to, got none: name one, or set WINNOW_PROFILE or HOME");
  if (const fs::path folder = fs::path(path).parent_path(); !folder.empty()) {
    std::error_code ignored;  // check_writable() tells
    fs::create_directories(folder, ignored);
  }
  check_writable("profile", path);
  return path;
}

}  // namespace winnow::report
