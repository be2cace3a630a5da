// How --help looks: values by name, defaults at the end, text wrapped.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace winnow::cli {

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(34); }
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* command) const override;
  std::string make_group(std::string group, bool is_positional, std::vector<const CLI::Option*> options) const override;
};

// Checks whose allowed values are already told by the option's value name.
CLI::Validator one_of(const std::vector<std::string>& values);
CLI::Validator in_range(int low, int high);
CLI::Validator in_range(double low, double high);
CLI::Validator at_least_one();  // an int
CLI::Validator number();        // whose range is not the command line's to know

// An option for a list "1,2,5" of one or more words, none of them empty. `add` gets one after the other once `item` has passed it.
CLI::Option* add_list(CLI::App& command, const std::string& name, const std::string& text, const CLI::Validator& item,
                      const std::function<void(const std::string&)>& add);
template <class T>
CLI::Option* add_list(CLI::App& command, const std::string& name, std::vector<T>& list, const std::string& text,
                      const CLI::Validator& item) {
  return add_list(command, name, text, item, [&list, is_default = true](const std::string& word) mutable {
    if (std::exchange(is_default, false)) list.clear();
    CLI::detail::lexical_cast(word, list.emplace_back());
  });
}

// The options of these groups say something about `what` only: without it they are refused.
void need(CLI::App& command, CLI::Option* what, const std::vector<std::string>& groups);

// No option takes an empty or blank value: a script's unset variable would silently count as no option, or as the number 0. Only an
// empty --negative-prompt means something. To be called when all commands are there.
void refuse_empty_values(CLI::App& app);

}  // namespace winnow::cli
