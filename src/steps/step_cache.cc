#include "steps/step_cache.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/numeric.h"
#include "steps/residual.h"
#include "winnow/error.h"

namespace winnow {

struct CachedForward::Slot {
  Branch branch = Branch::conditional;
  Grid grid;
  std::int64_t tokens = 0, width = 0;
  DType dtype = DType::f32;
  int step = 0;  // of its last forward
  CacheTrack track;
  // Made by the first forward that is stored.
  Tensor first;                    // FirstBlockCache: the first block's residual, of the last computed forward
  Tensor rest;                     // what the blocks that are reused added; while they run: x before them
  std::vector<CacheSums> partial;  // scratch of sums
  std::vector<float> time;         // TeaCache: the time signal of the last forward
  std::vector<float> time_now;     // scratch

  Slot(const StepCacheConfig& config, const TensorView& x) : tokens(x.size(0)), width(x.size(1)), dtype(x.dtype), track(config) {}
  bool has_shape(const TensorView& x) const { return tokens == x.size(0) && width == x.size(1) && dtype == x.dtype; }
  std::size_t bytes() const {
    std::size_t total = 0;
    for (const Tensor* t : {&first, &rest}) total += t->empty() ? 0 : t->bytes();
    return total;
  }
  // Returns by how much it grew.
  std::size_t make_buffers(bool with_first) {
    const std::size_t had = bytes();
    if (with_first && first.empty()) first = Tensor(dtype, {tokens, width});
    if (rest.empty()) rest = Tensor(dtype, {tokens, width});
    partial.resize(residual::partial_sums(tokens * width));
    return bytes() - had;
  }
};

struct CachedForward::Request {
  std::uint64_t id = 0;
  std::vector<CachePlace> places;  // [steps]
  int step = -1;                   // of the last forward
  int expert = 0;
  // Of the last conditional forward.
  int conditional_step = -1;
  Grid conditional_grid;
  bool conditional_reused = false;
  std::vector<std::unique_ptr<Slot>> slots;  // of that expert
  // Of the expert before it: memory for the slots of this one, during its first step.
  std::vector<std::unique_ptr<Slot>> spare;
};

namespace {

bool measures_first_block(const StepCacheConfig& config) { return std::holds_alternative<FirstBlockCache>(config.method); }

void check_hidden_states(const TensorView& x) {
  if (x.rank != 2 || !x.is_contiguous() || x.numel() == 0 || x.device != Device::cpu ||
      (x.dtype != DType::f32 && x.dtype != DType::f16 && x.dtype != DType::bf16)) {
    throw Error("cache", "x: expected contiguous [tokens,D] f32, f16 or bf16 on the cpu, got " + x.describe());
  }
}

void widen(const TensorView& from, std::vector<float>& to) {
  to.resize(static_cast<std::size_t>(from.numel()));
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i] = from.dtype == DType::bf16  ? to_f32(from.as<bf16>()[i])
            : from.dtype == DType::f16 ? to_f32(from.as<f16>()[i])
                                       : from.as<float>()[i];
  }
}

}  // namespace

StepCache::StepCache(StepCacheConfig config, Diagnostics diagnostics, Agree agree)
    : config_(std::move(config)), diagnostics_(std::move(diagnostics)), agree_(std::move(agree)) {
  config_.validate();
  const auto* mag = std::get_if<MagCache>(&config_.method);
  if (mag != nullptr && !mag->calibration.empty()) {
    throw Error("cache", "calibration: expected its ratios, read by with_model_calibration(), got " + mag->calibration);
  }
}
StepCache::~StepCache() = default;

void StepCache::begin_request(std::uint64_t request, std::span<const int> expert_of_step) {
  auto made = std::make_unique<Request>();
  made->id = request;
  made->places = cache_places(expert_of_step);
  const auto* mag = std::get_if<MagCache>(&config_.method);
  const bool low = std::any_of(made->places.begin(), made->places.end(), [](const CachePlace& p) { return p.expert == 1; });
  if (low && mag != nullptr && mag->threshold_low > 0.0F && mag->ratios.low.conditional.empty()) {
    throw Error("cache", "ratios.low.conditional: expected a list, because this run has a low-noise expert, got none");
  }
  constexpr std::size_t kUsualSlots = 4;  // two branches, and twice that while a batch changes
  made->slots.reserve(kUsualSlots);
  made->spare.reserve(kUsualSlots);
  end_request(request);
  requests_.push_back(std::move(made));
}

void StepCache::end_request(std::uint64_t request) {
  const auto found = std::find_if(requests_.begin(), requests_.end(), [&](const auto& r) { return r->id == request; });
  if (found == requests_.end()) return;
  drop((*found)->slots);
  drop((*found)->spare);
  requests_.erase(found);
}

void StepCache::drop(std::vector<std::unique_ptr<Slot>>& slots) {
  for (const auto& slot : slots) bytes_ -= slot->bytes();
  slots.clear();
}

// The left expert's residuals describe a network that no longer runs. Their memory is what the next one needs.
void StepCache::leave_expert(Request& request) {
  drop(request.spare);
  request.slots.swap(request.spare);
}

CachedForward StepCache::forward(std::uint64_t request, int step, Branch branch, const Grid& grid) {
  const auto found = std::find_if(requests_.begin(), requests_.end(), [&](const auto& r) { return r->id == request; });
  if (found == requests_.end()) throw Error("cache", "request " + std::to_string(request) + ": expected one that was begun");
  Request& r = **found;
  if (step < 0 || step >= static_cast<int>(r.places.size())) {
    throw Error("cache", "step: expected 0 to " + std::to_string(r.places.size() - 1) + ", got " + std::to_string(step));
  }
  CachedForward forward;
  forward.cache_ = this;
  forward.request_ = &r;
  forward.place_ = r.places[static_cast<std::size_t>(step)];
  forward.branch_ = branch;
  forward.grid_ = grid;
  if (forward.place_.expert != r.expert) {
    leave_expert(r);
    r.expert = forward.place_.expert;
  } else if (step != r.step) {
    drop(r.spare);
    // A slot that missed a step has nothing to give any more: another shape, or guidance that was switched off.
    const auto stale = [&](const std::unique_ptr<Slot>& slot) { return slot->step != step - 1 && slot->step != step; };
    for (const auto& slot : r.slots) bytes_ -= stale(slot) ? slot->bytes() : 0;
    r.slots.erase(std::remove_if(r.slots.begin(), r.slots.end(), stale), r.slots.end());
  }
  r.step = step;
  return forward;
}

CachedForward::Slot& StepCache::slot(Request& request, const CachePlace& place, Branch branch, const Grid& grid, const TensorView& x) {
  const auto same = [&](const std::unique_ptr<Slot>& slot) { return slot->branch == branch && slot->grid == grid && slot->has_shape(x); };
  auto found = std::find_if(request.slots.begin(), request.slots.end(), same);
  if (found == request.slots.end()) {
    const auto fits = std::find_if(request.spare.begin(), request.spare.end(), [&](const auto& slot) { return slot->has_shape(x); });
    if (fits != request.spare.end()) {
      request.slots.push_back(std::move(*fits));
      request.spare.erase(fits);
      request.slots.back()->track.forget();
      request.slots.back()->time.clear();
    } else {
      drop(request.spare);
      request.slots.push_back(std::make_unique<Slot>(config_, x));
    }
    found = request.slots.end() - 1;
    (*found)->branch = branch;
    (*found)->grid = grid;
  }
  (*found)->step = place.step;
  return **found;
}

void StepCache::count(const CachePlace& place, CacheReason reason) {
  ++totals_.experts[static_cast<std::size_t>(place.expert)].by_reason[static_cast<std::size_t>(reason)];
}

void StepCache::warn_non_finite() {
  if (std::exchange(told_non_finite_, true) || !diagnostics_) return;
  diagnostics_(
      {Severity::warning, "cache.non_finite", "the step cache met a NaN, an infinity or a first block that adds nothing: it computes"});
}

std::size_t StepCache::bytes_needed(const StepCacheConfig& config, std::int64_t tokens, std::int64_t width, DType dtype, int branches) {
  if (!config.on()) return 0;
  const std::size_t tensors = measures_first_block(config) ? 2 : 1;
  return tensors * static_cast<std::size_t>(branches) * static_cast<std::size_t>(tokens * width) * dtype_bytes(dtype);
}

bool CachedForward::decide(CacheReason reason) {
  reason_ = reason;
  undecided_ = false;
  if (branch_ == Branch::conditional) {
    request_->conditional_step = place_.step;
    request_->conditional_grid = grid_;
    request_->conditional_reused = reason == CacheReason::reused;
  }
  cache_->count(place_, reason);
  if (reason == CacheReason::non_finite) cache_->warn_non_finite();
  records_ = slot_ != nullptr && reason != CacheReason::reused && reason != CacheReason::disabled && place_.has_use();
  return reason == CacheReason::reused;
}

// What the conditional forward of this step did, if this one is to do the same.
std::optional<bool> CachedForward::conditional_reused() const {
  if (branch_ == Branch::conditional || !std::get<FirstBlockCache>(cache_->config_.method).follow_conditional) return std::nullopt;
  if (request_->conditional_step != place_.step || !(request_->conditional_grid == grid_)) return std::nullopt;
  return request_->conditional_reused;
}

void CachedForward::add_residual(const TensorView& x) {
  residual::add(x, slot_->rest);
  slot_->track.end();
}

bool CachedForward::before_blocks(const TensorView& x, const TensorView& time_embedding, const TensorView& time_projection, Workspace& ws) {
  check_hidden_states(x);
  if (!cache_->config_.on()) return decide(CacheReason::disabled);
  if (static_cast<int>(request_->places.size()) < cache_->config_.min_steps) return decide(CacheReason::too_few_steps);
  slot_ = &cache_->slot(*request_, place_, branch_, grid_, x);
  const std::optional<CacheReason> rule = slot_->track.begin(place_, branch_);
  undecided_ = !rule;
  if (rule) decide(*rule);
  const bool first_block = measures_first_block(cache_->config_);
  if (const auto* tea = std::get_if<TeaCache>(&cache_->config_.method)) {
    measure_time(tea->signal == TimeSignal::embedding ? time_embedding : time_projection);
  }
  if (reused()) {
    add_residual(x);
    return true;
  }
  if (records_) cache_->bytes_ += slot_->make_buffers(first_block);
  cache_->totals_.peak_bytes = std::max(cache_->totals_.peak_bytes, cache_->bytes_);
  if (first_block && (undecided_ || records_)) {
    before_ = TensorView(ws.allocate_bytes(static_cast<std::size_t>(x.numel()) * dtype_bytes(x.dtype)), x.dtype, {x.size(0), x.size(1)});
    residual::copy(x, before_);
  } else if (records_) {
    residual::copy(x, slot_->rest);
  }
  return false;
}

// Decides if nothing has yet, and keeps the signal for the next step.
void CachedForward::measure_time(const TensorView& signal) {
  if (signal.data == nullptr || signal.numel() == 0) throw Error("cache", "teacache: expected the host's time signal, got none");
  std::vector<float>& now = slot_->time_now;
  const std::vector<float>& last = slot_->time;
  widen(signal, now);
  CacheSums sums;
  for (std::size_t i = 0; i < std::min(last.size(), now.size()); ++i) {
    sums.change += std::abs(double{now[i]} - double{last[i]});
    sums.reference += std::abs(double{last[i]});
  }
  slot_->time.swap(now);
  now.resize(static_cast<std::size_t>(signal.numel()));  // later steps allocate nothing
  if (undecided_) decide(slot_->track.decide(sums));
}

bool CachedForward::after_first_block(const TensorView& x) {
  if (before_.data == nullptr) return false;
  residual::subtract(x, before_, slot_->partial);
  const TensorView& change = before_;
  if (undecided_) {
    const CacheSums sums = cache_->agreed(residual::compare(change, slot_->first, slot_->partial));
    const std::optional<bool> other = conditional_reused();
    decide(other ? slot_->track.follow(sums, *other) : slot_->track.decide(sums));
    const bool follows = std::get<FirstBlockCache>(cache_->config_.method).accumulate;
    if (reused() && follows) residual::copy(change, slot_->first);
  }
  if (reused()) {
    add_residual(x);
    return true;
  }
  if (records_) {
    residual::copy(change, slot_->first);
    residual::copy(x, slot_->rest);
  }
  return false;
}

void CachedForward::after_blocks(const TensorView& x) {
  if (!records_) return;
  if (residual::subtract(x, slot_->rest, slot_->partial)) {
    slot_->track.end();
  } else {
    cache_->warn_non_finite();
  }
}

}  // namespace winnow
