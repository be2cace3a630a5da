#include "cli/help.h"

#include <cstdint>
#include <sstream>

#include "core/text.h"

namespace winnow::cli {

namespace {

constexpr std::size_t kLineWidth = 110;

// `left` in a column of its own, `text` wrapped beside it.
std::string two_columns(std::string left, std::size_t column, const std::string& text) {
  if (left.size() + 2 > column) {
    left += "\n" + std::string(column, ' ');
  } else {
    left.resize(column, ' ');
  }
  std::istringstream words(text);
  std::string out = left;
  std::string word;
  std::size_t at = column;
  while (words >> word) {
    if (at > column && at + 1 + word.size() > kLineWidth) {
      out += "\n" + std::string(column, ' ');
      at = column;
    }
    out += (at > column ? " " : "") + word;
    at += word.size() + (at > column ? 1 : 0);
  }
  return out + "\n";
}

// What an option's value name stands for.
std::string in_words(const std::string& type) {
  if (type == "FILE") return "a file name";
  if (type == "DIR") return "a folder name";
  if (type == "TEXT") return "words";
  return type == "N" || type == "X" ? "a number" : type;
}

CLI::Validator silent(CLI::Validator validator) { return validator.description(""); }

}  // namespace

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  std::string left = "  " + make_option_name(option, is_positional);
  if (option->get_type_size() != 0) left += " " + option->get_type_name();
  std::string text = make_option_desc(option);
  if (option->get_required()) text += " (required)";
  if (option->get_type_size() != 0 && !option->get_default_str().empty()) text += " (default " + option->get_default_str() + ")";
  return two_columns(left, get_column_width(), text);
}

std::string HelpFormatter::make_subcommand(const CLI::App* command) const {
  return two_columns("  " + command->get_name(), get_column_width(), command->get_description());
}

std::string HelpFormatter::make_group(std::string group, bool is_positional, std::vector<const CLI::Option*> options) const {
  // CLI11 puts an empty line after every group but the last.
  std::string text = (group == "Options" ? "\n" : "") + group + ":\n";
  for (const CLI::Option* option : options) text += make_option(option, is_positional);
  return text;
}

CLI::Validator one_of(const std::vector<std::string>& values) { return silent(CLI::IsMember(values)); }
CLI::Validator in_range(int low, int high) { return silent(CLI::Range(low, high)); }
CLI::Validator in_range(double low, double high) {  // CLI::Range takes NaN
  const auto check = [low, high](std::string& text) {
    double value = 0.0;
    if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high) return std::string();
    return "expected a number from " + short_number(low) + " to " + short_number(high) + ", got " + text;
  };
  return silent(CLI::Validator(check, ""));
}
CLI::Validator at_least_one() { return silent(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40U)); }

void refuse_empty_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_type_size() == 0 || option->check_lname("negative-prompt")) continue;
    const std::string expected = in_words(option->get_type_name());
    const auto check = [expected](const std::string& text) {
      return text.find_first_not_of(" \t\r\n") == std::string::npos ? "expected " + expected + ", got an empty text" : std::string();
    };
    option->check(check);
  }
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) refuse_empty_values(*command);
}

}  // namespace winnow::cli
