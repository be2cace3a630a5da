// Prompt files: one prompt a line.
#pragma once

#include <string>
#include <vector>

#include "winnow/engine.h"

namespace winnow::report {

struct Prompt {
  std::string text;
  std::string place;  // for messages: "prompts.txt:3"
};

// Blank lines and lines that begin with # are left out. Throws Error, also if there is no prompt, or one twice.
std::vector<Prompt> read_prompts(const std::string& path, const std::string& operation);
std::vector<std::string> texts(const std::vector<Prompt>& prompts);
// For the time before a long run. Throws Error naming the place of the first prompt that the model does not take.
void check_prompts(const std::vector<Prompt>& prompts, const Engine& engine, const std::string& operation);

}  // namespace winnow::report
