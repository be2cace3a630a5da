// Progress of a study, which can take hours.
#pragma once

#include <chrono>
#include <string>

#include "report/study.h"

namespace winnow::cli {

// What is going on, on stderr: a line that redraws itself on a terminal, one line per piece of work elsewhere.
class StudyPrinter {
 public:
  // False once the user interrupts.
  bool operator()(const report::StudyEvent& event);
  void end();

 private:
  using Clock = std::chrono::steady_clock;
  void print(const report::StudyEvent& event) const;

  std::string stage_, what_;
  int done_ = 0, first_ = 0;
  Clock::time_point began_;
};

}  // namespace winnow::cli
