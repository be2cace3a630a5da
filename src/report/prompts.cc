#include "report/prompts.h"

#include <cstddef>
#include <set>
#include <sstream>

#include "core/json.h"
#include "core/label.h"
#include "winnow/error.h"

namespace winnow::report {

std::vector<Prompt> read_prompts(const std::string& path, const std::string& operation) {
  std::istringstream text(read_text_file(path, operation, std::size_t{1} << 20U));
  std::vector<Prompt> prompts;
  std::set<std::string> seen;
  std::string line;
  for (int number = 1; std::getline(text, line); ++number) {
    const std::size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos || line[first] == '#') continue;
    line = line.substr(first, line.find_last_not_of(" \t\r") + 1 - first);
    const std::string place = path + ":" + std::to_string(number);
    if (!seen.insert(line).second) throw Error(operation, place + ": the prompt \"" + line + "\" is there twice");
    prompts.push_back({line, place});
  }
  if (prompts.empty()) throw Error(operation, path + ": expected one prompt a line, found none");
  return prompts;
}

std::vector<std::string> texts(const std::vector<Prompt>& prompts) {
  std::vector<std::string> all;
  for (const Prompt& prompt : prompts) all.push_back(prompt.text);
  return all;
}

void check_prompts(const std::vector<Prompt>& prompts, const Engine& engine, const std::string& operation) {
  for (const Prompt& prompt : prompts) {
    with_label(operation, prompt.place, [&] { engine.check_prompt(prompt.text); });
  }
}

}  // namespace winnow::report
