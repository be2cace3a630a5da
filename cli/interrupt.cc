#include "cli/interrupt.h"

#include <csignal>
#include <ctime>

namespace winnow::cli {

namespace {

volatile std::sig_atomic_t received = 0;
timespec first_time{};

extern "C" void note_signal(int signal) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (received == 0) {
    first_time = now;
    received = signal;
    return;
  }
  // timeout, make and shells may deliver one Ctrl-C twice; only what comes half a second later is a second one.
  const double since_first =
      static_cast<double>(now.tv_sec - first_time.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec - first_time.tv_nsec);
  if (since_first < 0.5) return;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = 0;  // no SA_RESTART: opening a pipe that nobody reads has to end
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
}

int interrupt_signal() { return received; }

}  // namespace winnow::cli
