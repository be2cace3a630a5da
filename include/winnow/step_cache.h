// The step cache's configuration and report: denoising steps whose transformer blocks would repeat the last computed ones reuse
// what those added to the hidden states. Expert 0 is the high-noise one, or the only one; 1 is the low-noise one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace winnow {

// Every forward is computed.
struct NoCache {
  static constexpr const char* kName = "off";
  void validate() const {}
  template <class Self, class Visit>
  static void options(Self&, Visit&&) {}
};

// The first block always runs. With r = what it added to the hidden states, the others are reused if
//   mean |r - r_ref| / mean |r_ref| < threshold,   r_ref of the last computed forward (First Block Cache).
// The defaults are those of the Wan 2.2 study that gave each expert its own threshold.
struct FirstBlockCache {
  static constexpr const char* kName = "first_block";
  float threshold_high = 0.05F;  // of the high-noise (or only) expert; 0: this expert is not cached
  float threshold_low = 0.20F;
  // Adds up the changes from one forward to the next, computed or not, since the last computed one, and compares their sum.
  bool accumulate = false;
  // The unconditional forward does what the conditional one of the same step did: one that is reused beside one that is computed
  // changes the difference of the two, which guidance multiplies.
  bool follow_conditional = true;
  void validate() const;
  template <class Self, class Visit>
  static void options(Self& self, Visit&& visit) {
    visit("threshold_high", self.threshold_high);
    visit("threshold_low", self.threshold_low);
    visit("accumulate", self.accumulate);
    visit("follow_conditional", self.follow_conditional);
  }
};

// What TeaCache measures: the time embedding [D], or its projection to the blocks' modulation [6 D].
enum class TimeSignal : std::uint8_t { embedding, projection };
inline constexpr std::array<const char*, 2> kTimeSignalNames = {"embedding", "projection"};

// TeaCache: reuses all blocks while the sum of P(d) since the last computed forward is below the threshold; d = relative change of
// the time signal from step to step, P = polynomial, highest power first. Knows the timestep only, not the content.
struct TeaCache {
  static constexpr const char* kName = "teacache";
  float threshold_high = 0.2F;
  float threshold_low = 0.2F;
  std::vector<double> coefficients = {};      // required: published for a model, its schedule and a signal
  std::vector<double> coefficients_low = {};  // of the low-noise expert; empty: coefficients
  TimeSignal signal = TimeSignal::embedding;
  void validate() const;
  template <class Self, class Visit>
  static void options(Self& self, Visit&& visit) {
    visit("threshold_high", self.threshold_high);
    visit("threshold_low", self.threshold_low);
    visit("coefficients", self.coefficients);
    visit("coefficients_low", self.coefficients_low);
    visit("signal", self.signal);
  }
};

// |residual of all blocks| of each step over that of the step before it, for one expert. Other numbers of steps take the nearest.
struct MagnitudeRatios {
  std::vector<double> conditional = {};
  std::vector<double> unconditional = {};  // empty: conditional
  bool operator==(const MagnitudeRatios&) const = default;
  template <class Self, class Visit>
  static void options(Self& self, Visit&& visit) {
    visit("conditional", self.conditional);
    visit("unconditional", self.unconditional);
  }
};
struct ExpertRatios {
  MagnitudeRatios high, low;
  bool operator==(const ExpertRatios&) const = default;
  template <class Self, class Visit>
  static void options(Self& self, Visit&& visit) {
    visit("high", self.high);
    visit("low", self.low);
  }
};
// MagCache: reuses all blocks while the sum over the forwards since the last computed one of |1 - product of ratios| is below the
// threshold. Tables belong to one expert each: one interpolated over both would move the switch.
struct MagCache {
  static constexpr const char* kName = "magcache";
  float threshold_high = 0.04F;
  float threshold_low = 0.04F;
  float retention = 0.2F;  // share of each expert's steps, its first ones, that are computed
  ExpertRatios ratios = {};
  std::string calibration = {};  // instead of ratios: a file of `winnow calibrate magcache`, which with_model_calibration() reads
  void validate() const;
  template <class Self, class Visit>
  static void options(Self& self, Visit&& visit) {
    visit("threshold_high", self.threshold_high);
    visit("threshold_low", self.threshold_low);
    visit("retention", self.retention);
    visit("ratios", self.ratios);
    visit("calibration", self.calibration);
  }
};

using CacheMethod = std::variant<NoCache, FirstBlockCache, TeaCache, MagCache>;

struct StepCacheConfig {
  CacheMethod method;
  int max_consecutive_skips = 3;  // reused forwards in a row
  int warm_up_steps = 1;          // the first steps of each expert are computed
  int min_steps = 9;              // schedules with fewer steps run without a cache
  void validate() const;          // throws Error naming the key
  bool on() const { return !std::holds_alternative<NoCache>(method); }
  const char* method_name() const;
  template <class Self, class Visit>
  static void options(Self& self, Visit&& visit) {  // what every method but `off` takes
    visit("max_consecutive_skips", self.max_consecutive_skips);
    visit("warm_up_steps", self.warm_up_steps);
    visit("min_steps", self.min_steps);
  }
};

// A method's name ("first_block", "off"), a path to a JSON file, or JSON text: {"method":"first_block","threshold_low":0.1}.
// Keys that are not named keep their defaults; unknown keys, wrong types and values out of range throw Error naming the key.
StepCacheConfig parse_step_cache_config(std::string_view name_file_or_json);
std::string to_json(const StepCacheConfig& config);  // every key that has a value, one line

// Why a forward was reused or computed; the first that holds.
enum class CacheReason : std::uint8_t {
  reused,
  too_few_steps,  // min_steps
  disabled,       // this expert's threshold is 0
  last_step,      // of its expert
  first_step,     // of its expert
  warm_up,        // warm_up_steps or retention
  no_reference,   // nothing to reuse: another shape, a guidance branch that was away, a forward that did not end, ...
  max_skips,      // max_consecutive_skips
  non_finite,     // the signal is NaN or infinite, or what it is relative to is zero
  changed,        // the signal reached the threshold
  conditional,    // the conditional forward of this step was computed
};
inline constexpr int kNumCacheReasons = 11;
const char* cache_reason_name(CacheReason reason);

struct CacheCounts {
  std::array<std::int64_t, kNumCacheReasons> by_reason{};  // forwards; index: CacheReason
  std::int64_t forwards() const;
  std::int64_t reused() const { return by_reason[static_cast<std::size_t>(CacheReason::reused)]; }
};
struct CacheTotals {
  std::array<CacheCounts, 2> experts{};
  std::size_t peak_bytes = 0;  // of buffers
  std::int64_t forwards() const { return experts[0].forwards() + experts[1].forwards(); }
  std::int64_t reused() const { return experts[0].reused() + experts[1].reused(); }
  std::int64_t count(CacheReason reason) const;
};

}  // namespace winnow
