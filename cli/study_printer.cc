#include "cli/study_printer.h"

#include <unistd.h>

#include <cstdio>

#include "cli/interrupt.h"
#include "cli/terminal.h"

namespace winnow::cli {

namespace {
bool is_terminal() { return ::isatty(STDERR_FILENO) == 1; }
}  // namespace

bool StudyPrinter::operator()(const report::StudyEvent& event) {
  const bool is_new = event.stage != stage_ || event.done != done_ || event.what != what_;
  if (event.stage != stage_) {
    stage_ = std::string(event.stage);
    began_ = Clock::now();
    first_ = event.done;
  }
  done_ = event.done;
  what_ = event.what;
  if (is_new) print(event);
  return interrupt_signal() == 0;
}

void StudyPrinter::end() {
  if (is_terminal() && !stage_.empty()) std::fprintf(stderr, "\r\x1b[K");
  stage_.clear();
}

void StudyPrinter::print(const report::StudyEvent& event) const {
  std::string line = stage_ + format(" %d/%d  ", event.done + 1, event.total) + what_;
  const int finished = event.done - first_;
  if (finished > 0) {
    const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    line += "  ETA " + format_duration(seconds / finished * (event.total - event.done));
  }
  std::fprintf(stderr, is_terminal() ? "\r%s\x1b[K" : "%s\n", line.c_str());
  std::fflush(stderr);
}

}  // namespace winnow::cli
