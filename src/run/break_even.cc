#include "run/break_even.h"

#include <filesystem>
#include <utility>

#include "core/options.h"
#include "run/methods.h"
#include "winnow/error.h"

namespace winnow {

namespace {

double elements(const PlanGeometry& geometry, std::int64_t D, std::int64_t key_heads, double key_tensors) {
  const auto queries = static_cast<double>(geometry.B * geometry.H * geometry.Sq);
  const auto keys = static_cast<double>(geometry.B * key_heads * geometry.Sk);
  return static_cast<double>(D) * (queries + key_tensors * keys);
}

// The share of its tiles that the method asks for, if it says so before it has looked.
std::optional<double> asked_density(const Method& method) {
  return std::visit(
      []<class Options>(const Options& options) -> std::optional<double> {
        if constexpr (requires { options.sparsity; }) return 1.0 - options.sparsity;
        if constexpr (requires { options.density; }) {
          if (options.density > 0.0F) return options.density;
        }
        return std::nullopt;
      },
      method);
}

}  // namespace

// Every mean_group of the keys that are left out is one key more.
CostWork attend_work(const PlanGeometry& geometry, std::int64_t D, std::int64_t key_heads, double density) {
  const double share = density + (1.0 - density) / geometry.mean_group;
  const double pairs = geometry.pairs() * share;
  return {elements(geometry, D, key_heads, 2.0), pairs, static_cast<double>(D) * pairs};
}

CostWork planning_work(const Method& method, const PlanGeometry& geometry, std::int64_t D, std::int64_t key_heads) {
  const Cells cells = cells_of(method, geometry);
  const auto scores = static_cast<double>(geometry.rows() * cells.per_query_tile) * static_cast<double>(geometry.Gk() * cells.per_key_tile);
  return {elements(geometry, D, key_heads, 1.0), scores, static_cast<double>(D) * scores};
}

std::optional<BreakEven> BreakEven::load(const AttentionConfig& config, const Diagnostics& diagnostics) {
  const ProfilePlace place = find_profile(config.profile);
  if (place.path.empty() || !selects_tiles(config.method)) return std::nullopt;
  if (place.named) return BreakEven(CostProfile::load(place.path), config.method);
  if (std::error_code error; !std::filesystem::exists(place.path, error)) return std::nullopt;
  try {
    return BreakEven(CostProfile::load(place.path), config.method);
  } catch (const Error& error) {
    if (diagnostics) diagnostics({Severity::warning, "profile.ignored", std::string("no break-even rule: ") + error.what()});
    return std::nullopt;
  }
}

BreakEven::BreakEven(CostProfile profile, Method method) : profile_(std::move(profile)), method_(std::move(method)) {}

// None: nobody has looked for long.
std::optional<double> BreakEven::expected_density(int step, double keep) const {
  if (keep > 0.0) return keep;
  if (const std::optional<double> asked = asked_density(method_)) return asked;
  if (step_ < 0) return kAssumedDensity;
  if (step < step_ || step >= step_ + kStepsUntilNextLook) return std::nullopt;
  return computed_pairs_ / pairs_;
}

bool BreakEven::pays(int step, const PlanGeometry& geometry, std::int64_t D, std::int64_t key_heads, const std::string& executor,
                     double keep) const {
  const ExecutorCosts* costs = profile_.find(executor);
  if (costs == nullptr) return true;
  const auto planning = costs->planning.find(method_name(method_));
  if (planning == costs->planning.end()) return true;
  const std::optional<double> density = expected_density(step, keep);
  if (!density) return true;
  const double dense = costs->attend.seconds(attend_work(geometry, D, key_heads, 1.0));
  const double sparse = costs->attend.seconds(attend_work(geometry, D, key_heads, *density));
  return planning->second.seconds(planning_work(method_, geometry, D, key_heads)) + sparse < dense;
}

void BreakEven::saw(int step, double pairs, double density) {
  if (step != step_) pairs_ = computed_pairs_ = 0.0;
  step_ = step;
  pairs_ += pairs;
  computed_pairs_ += pairs * density;
}

void BreakEven::reset() {
  step_ = -1;
  pairs_ = computed_pairs_ = 0.0;
}

}  // namespace winnow
