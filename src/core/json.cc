#include "core/json.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "winnow/error.h"

namespace winnow {

namespace {
constexpr int kMaxDepth = 64;  // a model's configuration has 3; the limit keeps hostile files cheap
}

std::string read_text_file(const std::string& path, const std::string& operation, std::size_t max_bytes) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"), &std::fclose);
  if (!file) throw Error(operation, path + ": cannot open: " + std::strerror(errno));
  std::string text;
  char buffer[1U << 14U];
  for (;;) {
    const std::size_t got = std::fread(buffer, 1, sizeof buffer, file.get());
    text.append(buffer, got);
    if (text.size() > max_bytes) throw Error(operation, path + ": larger than " + std::to_string(max_bytes) + " bytes");
    if (got < sizeof buffer) break;
  }
  if (std::ferror(file.get()) != 0) throw Error(operation, path + ": cannot read: " + std::strerror(errno));
  return text;
}

nlohmann::json parse_json(std::string_view text, const std::string& name, const std::string& operation) {
  using nlohmann::json;
  const std::size_t nul = text.find('\0');  // the parser takes it for the end
  if (nul != std::string_view::npos) throw Error(operation, name + ": not valid JSON: a zero byte at " + std::to_string(nul));
  std::vector<std::set<std::string>> seen;  // keys of every open object
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxDepth) throw Error(operation, name + ": nested deeper than " + std::to_string(kMaxDepth));
    if (event == json::parse_event_t::object_start) seen.emplace_back();
    if (event == json::parse_event_t::object_end) seen.pop_back();
    if (event == json::parse_event_t::key && !seen.back().insert(value.get<std::string>()).second) {
      throw Error(operation, name + ": key \"" + value.get<std::string>() + "\" appears twice");
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& e) {
    throw Error(operation, name + ": not valid JSON: " + e.what());
  }
}

}  // namespace winnow
