// The subcommands: each adds its flags to the program and stores what to do when it is chosen.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace winnow::cli {

// Set by the chosen subcommand's flags; main() calls it once parsing has succeeded.
using Action = std::function<void()>;

void add_generate(CLI::App& app, Action& action);
void add_capture(CLI::App& app, Action& action);
void add_compare(CLI::App& app, Action& action);
void add_compare_cache(CLI::App& app, Action& action);
void add_attend(CLI::App& app, Action& action);
void add_info(CLI::App& app, Action& action);
void add_calibrate(CLI::App& app, Action& action);
// Subcommands of calibrate.
void add_calibrate_budget(CLI::App& calibrate, Action& action);
void add_calibrate_magcache(CLI::App& calibrate, Action& action);
void add_config(CLI::App& app, Action& action);

}  // namespace winnow::cli
