// StepCache: what the transformer blocks added to the hidden states in the last computed forward, kept to be added again.
// A slot belongs to one request, expert, guidance branch, shape and dtype; nothing is ever taken from another one. A batch is a list of
// samples, each a request of its own with its own forward and its own decision. Not for use by several threads at once: one per worker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "steps/cache_track.h"
#include "winnow/callbacks.h"
#include "winnow/step_cache.h"
#include "winnow/steps.h"
#include "winnow/tensor.h"
#include "winnow/workspace.h"

namespace winnow {

class StepCache;

// One sample's forward through the blocks. The host calls the three hooks in order with its hidden states x [tokens, D], contiguous
// f32, f16 or bf16, which its blocks may change in place. One that returns true has made x what it is after all blocks: the host
// goes straight to the model's head.
class CachedForward {
 public:
  // Before the first block. The time signals, f32, f16 or bf16, are what TeaCache measures; others ignore them. Scratch from `ws`,
  // which has to live until after_first_block().
  bool before_blocks(const TensorView& x, const TensorView& time_embedding, const TensorView& time_projection, Workspace& ws);
  bool after_first_block(const TensorView& x);
  // After the last block, if none returned true.
  void after_blocks(const TensorView& x);

  CacheReason reason() const { return reason_; }  // once decided
  bool reused() const { return reason_ == CacheReason::reused; }

 private:
  friend class StepCache;
  struct Slot;
  struct Request;
  void measure_time(const TensorView& signal);
  bool decide(CacheReason reason);
  std::optional<bool> conditional_reused() const;
  void add_residual(const TensorView& x);

  StepCache* cache_ = nullptr;
  Request* request_ = nullptr;
  Slot* slot_ = nullptr;  // null: nothing to reuse and nothing to keep
  CachePlace place_;
  Branch branch_ = Branch::conditional;
  Grid grid_;
  TensorView before_;  // x before the first block, then the first block's residual
  bool records_ = false;
  bool undecided_ = false;  // until the first block's signal
  CacheReason reason_ = CacheReason::no_reference;
};

class StepCache {
 public:
  // Adds up the sums of all workers that hold parts of one sample's tokens, so that they decide alike.
  using Agree = std::function<CacheSums(const CacheSums&)>;

  // Throws Error if the configuration is invalid.
  explicit StepCache(StepCacheConfig config, Diagnostics diagnostics = {}, Agree agree = {});
  ~StepCache();
  StepCache(const StepCache&) = delete;
  StepCache& operator=(const StepCache&) = delete;

  // A run over a schedule, with the expert (0 or 1) of each step. A request that exists starts anew.
  void begin_request(std::uint64_t request, std::span<const int> expert_of_step);
  void end_request(std::uint64_t request);  // frees its buffers; one that does not exist is ignored
  // The forward of one step and branch. At the first of another expert, what the request kept of the last one is freed.
  // Throws Error if the request was not begun or has no such step.
  CachedForward forward(std::uint64_t request, int step, Branch branch, const Grid& grid);

  const StepCacheConfig& config() const { return config_; }
  const CacheTotals& totals() const { return totals_; }  // of all requests
  std::size_t bytes() const { return bytes_; }           // of buffers, now
  // The most that one request takes at a time, for `branches` guidance branches.
  static std::size_t bytes_needed(const StepCacheConfig& config, std::int64_t tokens, std::int64_t width, DType dtype, int branches);

 private:
  friend class CachedForward;
  using Slot = CachedForward::Slot;
  using Request = CachedForward::Request;
  Slot& slot(Request& request, const CachePlace& place, Branch branch, const Grid& grid, const TensorView& x);
  void leave_expert(Request& request);
  void drop(std::vector<std::unique_ptr<Slot>>& slots);
  void count(const CachePlace& place, CacheReason reason);
  CacheSums agreed(const CacheSums& sums) const { return agree_ ? agree_(sums) : sums; }
  void warn_non_finite();

  StepCacheConfig config_;
  Diagnostics diagnostics_;
  Agree agree_;
  std::vector<std::unique_ptr<Request>> requests_;
  CacheTotals totals_;
  std::size_t bytes_ = 0;
  bool told_non_finite_ = false;
};

}  // namespace winnow
