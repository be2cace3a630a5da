// Progress on stderr, and numbers as people read them.
#pragma once

#include <cstddef>
#include <string>

#include "winnow/callbacks.h"

namespace winnow::cli {

std::string format(const char* format, ...) __attribute__((format(printf, 1, 2)));
// On one line and at most 2000 characters, without control characters: names out of files and arguments may hold anything.
std::string one_line(const std::string& message);
std::string format_bytes(double bytes);       // "25.0 MB"
std::string format_flops(double flops);       // "8.32 TFLOP"
std::string format_duration(double seconds);  // "0.42 s", "1:05", "2:03:10"

// A bar that redraws itself on a terminal; one plain line per finished step elsewhere.
class ProgressPrinter {
 public:
  ProgressPrinter();

  // Shown before each line, such as "run 2/6 mean_pool"; ends what was shown before.
  void begin(const std::string& title, int high_noise_steps);
  // Prints, and returns false once Ctrl-C has been pressed: to be used as a Progress callback.
  bool operator()(const ProgressEvent& event);
  // Completes the last line; also clears the bar after an error.
  void end();

 private:
  void draw_bar(const ProgressEvent& event);
  void print_step();
  std::string step_details(const ProgressEvent& event) const;

  bool is_terminal_;
  std::string title_;
  int high_noise_steps_ = 0;
  std::string stage_;
  ProgressEvent last_;  // its stage points into stage_
  bool has_last_ = false;
  int pass_ = 0;             // of the current step: with guidance the layers are run through twice
  int passes_ = 1;           // the most that a step has had so far
  double step_began_ = 0.0;  // seconds of the stage at which the current step began
  double last_drawn_ = -1.0;
};

}  // namespace winnow::cli
