// How --help looks: values by name, defaults at the end, text wrapped.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

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
CLI::Validator at_least_one();
// No option takes an empty or blank value: a script's unset variable would silently count as no option, or as the number 0. Only an
// empty --negative-prompt means something. To be called when all commands are there.
void refuse_empty_values(CLI::App& app);

}  // namespace winnow::cli
