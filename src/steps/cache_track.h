// When does one guidance branch of one expert reuse? The decisions alone, from numbers: no tensors, no device.
//
// A host on a GPU calls begin(), queues the reduction of the signal and an asynchronous readback of its two sums, lets the device go on
// with work that it needs in any case (or with the second block, on speculation), and calls decide() once the sums are there.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "winnow/step_cache.h"
#include "winnow/steps.h"

namespace winnow {

// Where a step stands among the steps of its expert.
struct CachePlace {
  int expert = 0;
  int step = 0;   // of the run
  int index = 0;  // of the expert
  int count = 1;  // steps of the expert
  bool last() const { return index == count - 1; }
  // Whether some later step may reuse this one: not the last, which is always computed.
  bool has_use() const { return index + 2 < count; }
};
// One per step. The experts' steps come from the schedule, never from a constant. Throws Error unless experts are 0 or 1.
std::vector<CachePlace> cache_places(std::span<const int> expert_of_step);

// Sums over a signal's elements. Of a signal that is spread over workers: the sums over all of them.
struct CacheSums {
  double change = 0.0;     // |value - reference|
  double reference = 0.0;  // |reference|
};

class CacheTrack {
 public:
  explicit CacheTrack(const StepCacheConfig& config) : config_(&config) {}

  // Starts a forward. The rule that decides without a signal; nullopt: decide() does.
  std::optional<CacheReason> begin(const CachePlace& place, Branch branch);
  // `sums` of the signal against its reference. reused, non_finite or changed.
  CacheReason decide(const CacheSums& sums);
  // The same for a forward that does what another of its step did: reused, non_finite or conditional.
  CacheReason follow(const CacheSums& sums, bool other_reused);
  // Ends a forward: a reused one, or a computed one whose result is stored for reuse. One that does not end leaves no reference.
  void end();
  void forget();

 private:
  std::optional<CacheReason> rule(const CachePlace& place) const;
  CacheReason computed(CacheReason reason);
  CacheReason reused();
  CacheReason advance_magnitudes(const CachePlace& place, Branch branch);

  const StepCacheConfig* config_;
  CachePlace place_;
  bool open_ = false;           // between begin() and end()
  bool has_reference_ = false;  // of the last computed forward
  int last_step_ = -2;
  int skips_ = 0;         // reused in a row
  double sum_ = 0.0;      // of signals since the last computed forward
  double product_ = 1.0;  // of magnitude ratios since then
};

}  // namespace winnow
