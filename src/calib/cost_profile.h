// What attention and planning cost on one machine, measured: tells whether a plan would pay for itself.
// docs/calibration.md describes the file.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

namespace winnow {

// How much a call has to do.
struct CostWork {
  double values = 0.0;    // elements of the inputs that it goes through
  double pairs = 0.0;     // of queries, or their blocks, with keys
  double products = 0.0;  // multiply-adds of these pairs: head dim times as many
};

// seconds = per_call + per_value values + per_pair pairs + per_product products, each >= 0.
struct CostLine {
  double per_call = 0.0;
  double per_value = 0.0;
  double per_pair = 0.0;
  double per_product = 0.0;
  double seconds(const CostWork& work) const {
    return per_call + per_value * work.values + per_pair * work.pairs + per_product * work.products;
  }
};

struct CostSample {
  CostWork work;
  double seconds = 0.0;
};
// The line with the least squared relative error. Throws Error for no samples, or times that are not positive.
CostLine fit_cost(std::span<const CostSample> samples);
// The largest |line - measured| / measured.
double worst_error(const CostLine& line, std::span<const CostSample> samples);

struct ExecutorCosts {
  std::string name;
  CostLine attend;
  std::map<std::string, CostLine> planning;  // by method name
};

struct CostProfile {
  std::string version;  // of Winnow
  std::string cpu;      // the processor's name
  int threads = 1;
  std::vector<ExecutorCosts> executors;

  static CostProfile of_this_machine();                          // without any costs yet, for num_threads()
  const ExecutorCosts* find(const std::string& executor) const;  // null: it was not measured
  // Throws Error naming file and field; also for a profile of another version or processor than this one.
  static CostProfile load(const std::string& path);
  void save(const std::string& path) const;
};

// Where a profile is looked for: `named` if it is not empty, else the environment variable WINNOW_PROFILE, else the default place.
struct ProfilePlace {
  std::string path;    // empty: none is wanted ("none")
  bool named = false;  // by a key or the variable: it has to be there and fit
};
ProfilePlace find_profile(const std::string& named);

}  // namespace winnow
