#include "core/env.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "winnow/error.h"

namespace winnow::env {

namespace {
std::string get(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}
}  // namespace

std::string search_path() { return get("PATH"); }

std::string profile() { return get("WINNOW_PROFILE"); }

std::string cache_folder() {
  if (const std::string cache = get("XDG_CACHE_HOME"); !cache.empty()) return cache;
  const std::string home = get("HOME");
  return home.empty() ? home : home + "/.cache";
}

std::string executor() { return get("WINNOW_EXECUTOR"); }

int threads() {
  const std::string text = get("WINNOW_THREADS");
  if (text.empty()) return 0;
  int n = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < 0 || n > 4096) {
    throw Error("environment", "WINNOW_THREADS: expected an integer in [0,4096], got \"" + text + "\"");
  }
  return n;
}

}  // namespace winnow::env
