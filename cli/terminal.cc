#include "cli/terminal.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <utility>

#include "cli/interrupt.h"

namespace winnow::cli {

std::string format(const char* format, ...) {
  std::array<char, 512> text{};
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  return text.data();
}

std::string one_line(const std::string& message) {
  constexpr std::size_t kLongest = 2000;
  std::string line = message.substr(0, kLongest);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20U || c == 0x7F) c = '?';
  }
  return line + (message.size() > kLongest ? "..." : "");
}

namespace {

std::string with_prefix(double value, double base, const char* unit) {
  static constexpr std::array<const char*, 6> kPrefixes = {"", "k", "M", "G", "T", "P"};
  std::size_t i = 0;
  while (value >= base && i + 1 < kPrefixes.size()) {
    value /= base;
    ++i;
  }
  return format(value < 10.0 ? "%.2f %s%s" : "%.1f %s%s", value, kPrefixes[i], unit);
}

}  // namespace

std::string format_bytes(double bytes) { return with_prefix(bytes, 1000.0, "B"); }
std::string format_flops(double flops) { return with_prefix(flops, 1000.0, "FLOP"); }

std::string format_duration(double seconds) {
  if (seconds < 60.0) return format("%.*f s", seconds < 10.0 ? 2 : 1, seconds);
  const auto whole = static_cast<long long>(std::llround(seconds));
  if (whole < 3600) return format("%lld:%02lld", whole / 60, whole % 60);
  return format("%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
}

ProgressPrinter::ProgressPrinter() : is_terminal_(::isatty(STDERR_FILENO) == 1) {}

void ProgressPrinter::begin(const std::string& title, int high_noise_steps) {
  end();
  title_ = title;
  high_noise_steps_ = high_noise_steps;
}

bool ProgressPrinter::operator()(const ProgressEvent& event) {
  if (event.stage != stage_ || (has_last_ && event.step < last_.step)) {
    end();
    stage_ = std::string(event.stage);
    step_began_ = 0.0;
    pass_ = 0;
    passes_ = 1;
  } else if (has_last_ && event.step != last_.step) {
    if (!is_terminal_) print_step();
    step_began_ = last_.seconds;
    pass_ = 0;
  } else if (has_last_ && event.layer < last_.layer) {
    passes_ = std::max(passes_, ++pass_ + 1);
  }
  last_ = event;
  last_.stage = stage_;
  has_last_ = true;
  if (is_terminal_) draw_bar(last_);
  return interrupt_signal() == 0;
}

std::string ProgressPrinter::step_details(const ProgressEvent& event) const {
  if (event.stage != "denoise") return {};
  std::string text;
  if (high_noise_steps_ > 0 && high_noise_steps_ < event.num_steps) text += event.step < high_noise_steps_ ? "  high-noise" : "  low-noise";
  return text + format("  density %.3f", event.density);
}

void ProgressPrinter::draw_bar(const ProgressEvent& event) {
  // Ten times a second is enough, and keeps slow terminals out of the timing.
  if (event.seconds - last_drawn_ < 0.1 && event.seconds >= last_drawn_) return;
  last_drawn_ = event.seconds;
  const double layers = event.num_layers > 0 ? static_cast<double>(event.layer) / event.num_layers : 0.0;
  const double part = (pass_ + layers) / passes_;
  const double done = event.step + part;
  const int steps = std::max(event.num_steps, 1);
  constexpr int kWidth = 24;
  const int filled = std::clamp(static_cast<int>(done / steps * kWidth), 0, kWidth);
  const std::string bar = std::string(static_cast<std::size_t>(filled), '#') + std::string(static_cast<std::size_t>(kWidth - filled), '.');
  std::string line =
      title_ + (title_.empty() ? "" : "  ") + stage_ + format(" %d/%d [", std::min(event.step + 1, steps), steps) + bar + "]";
  line += step_details(event);
  if (done > 0.0) {
    const double per_step = event.seconds / done;
    if (event.stage == "denoise") line += format("  %.2f s/step", per_step);
    line += "  ETA " + format_duration(per_step * std::max(0.0, steps - done));
  }
  std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
  std::fflush(stderr);
}

void ProgressPrinter::print_step() {
  if (last_.stage != "denoise") return;  // loading and writing are quick and not worth a line per step in a log
  std::fprintf(stderr, "%s%sdenoise %d/%d%s  %.2f s\n", title_.c_str(), title_.empty() ? "" : "  ", last_.step + 1, last_.num_steps,
               step_details(last_).c_str(), last_.seconds - step_began_);
}

void ProgressPrinter::end() {
  if (!std::exchange(has_last_, false)) return;
  if (is_terminal_) {
    std::fprintf(stderr, "\r\x1b[K");
    std::fflush(stderr);
  } else if (interrupt_signal() == 0) {
    print_step();
  }
  last_drawn_ = -1.0;
  stage_.clear();
}

}  // namespace winnow::cli
