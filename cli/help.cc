#include "cli/help.h"

#include <algorithm>
#include <cstdint>
#include <limits>
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

bool is_blank(const std::string& text) { return text.find_first_not_of(" \t\r\n") == std::string::npos; }

std::string refusal(const std::string& expected, const std::string& text) {
  return "expected " + expected + ", got " + (is_blank(text) ? "an empty text" : text);
}

template <class Accepts>
CLI::Validator expecting(const std::string& expected, Accepts accepts) {
  const auto check = [expected, accepts](const std::string& text) { return accepts(text) ? std::string() : refusal(expected, text); };
  return CLI::Validator(check, "");
}

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

CLI::Validator one_of(const std::vector<std::string>& values) { return CLI::IsMember(values).description(""); }

// CLI::Range takes NaN, and says nothing about what a number too large for its type should be.
CLI::Validator in_range(int low, int high) {
  return expecting("an integer from " + std::to_string(low) + " to " + std::to_string(high), [low, high](const std::string& text) {
    std::int64_t value = 0;
    return CLI::detail::lexical_cast(text, value) && value >= low && value <= high;
  });
}
CLI::Validator in_range(double low, double high) {
  return expecting("a number from " + short_number(low) + " to " + short_number(high), [low, high](const std::string& text) {
    double value = 0.0;
    return CLI::detail::lexical_cast(text, value) && value >= low && value <= high;
  });
}
CLI::Validator at_least_one() { return in_range(1, std::numeric_limits<int>::max()); }
CLI::Validator number() {
  return expecting("a number", [](const std::string& text) {
    double value = 0.0;
    return CLI::detail::lexical_cast(text, value);
  });
}

CLI::Option* add_list(CLI::App& command, const std::string& name, const std::string& text, const CLI::Validator& item,
                      const std::function<void(const std::string&)>& add) {
  const auto read = [name, item, add](const std::vector<std::string>& lists) {
    for (const std::string& list : lists) {
      std::size_t begin = 0;
      while (begin <= list.size()) {
        const std::size_t end = std::min(list.find(',', begin), list.size());
        std::string word = list.substr(begin, end - begin);
        begin = end + 1;
        if (is_blank(word)) throw CLI::ValidationError(name, "expected a value before and after every comma, got \"" + list + "\"");
        if (const std::string problem = item(word); !problem.empty()) throw CLI::ValidationError(name, problem);
        add(word);
      }
    }
  };
  return command.add_option_function<std::vector<std::string>>(name, read, text);
}

void need(CLI::App& command, CLI::Option* what, const std::vector<std::string>& groups) {
  for (CLI::Option* option : command.get_options()) {
    if (option != what && std::find(groups.begin(), groups.end(), option->get_group()) != groups.end()) option->needs(what);
  }
}

void refuse_empty_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_type_size() == 0 || option->check_lname("negative-prompt")) continue;
    const std::string expected = in_words(option->get_type_name());
    const auto check = [expected](const std::string& text) { return is_blank(text) ? refusal(expected, text) : std::string(); };
    option->check(check);
  }
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) refuse_empty_values(*command);
}

}  // namespace winnow::cli
