#include "cli/interrupt.h"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>

namespace winnow::cli {

namespace {

// Any thread may be the one that the system interrupts, and two may handle a signal at the same time.
std::atomic<int> received{0};
std::atomic<std::int64_t> first_time{0};  // nanoseconds; 0: no signal yet
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free, "signal handlers may not lock");

extern "C" void note_signal(int signal) {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const std::int64_t now = std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  std::int64_t first = 0;
  if (first_time.compare_exchange_strong(first, now)) {
    received.store(signal);
    return;
  }
  // timeout, make and shells may deliver one Ctrl-C twice; only what comes half a second later is a second one.
  if (now - first < 500'000'000) return;
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

int interrupt_signal() { return received.load(); }

}  // namespace winnow::cli
