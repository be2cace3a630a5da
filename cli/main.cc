// winnow: the command line. Results go to stdout, progress and errors to stderr.
// Exit codes: 0 done, 1 an error (one line on stderr), 2 wrong usage, 128 + signal when interrupted (130 for Ctrl-C).
#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/help.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "winnow/error.h"
#include "winnow/version.h"

namespace {

using winnow::cli::one_line;

constexpr int kError = 1;
constexpr int kUsage = 2;

constexpr const char* kFooter = R"(Examples:
  winnow generate --model models/winnow-tiny -p "a red ball bouncing over a plain navy background" -o ball.mp4
  winnow generate --model models/winnow-tiny -p "two small cyan stars spinning over a noisy grey background" \
      --attention mean_pool --compare dense --report report.json -o stars.mp4
  winnow attend --qkv qkv.safetensors --method '{"method":"mean_pool","cdf":0.8}'
  winnow info

Exit codes: 0 done, 1 error, 2 wrong usage, 130 interrupted by Ctrl-C, which stops
once the running layer is done and leaves no half-written file; a second Ctrl-C ends at once.)";

// "winnow calibrate budget".
std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return (parent == nullptr ? "" : full_name(*parent) + " ") + command.get_name();
}

// What was asked for, as far as it is known.
const CLI::App& chosen(const CLI::App& app) {
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  return parsed.empty() ? app : chosen(*parsed.front());
}

// CLI11 would print several lines and use exit codes above 100.
int usage_error(const CLI::App& app, const CLI::ParseError& error) {
  std::fprintf(stderr, "winnow: %s (see %s --help)\n", one_line(error.what()).c_str(), full_name(chosen(app)).c_str());
  return kUsage;
}

// CLI11 would only say that a subcommand is required, or that the word was not expected.
bool is_unknown_subcommand(const CLI::App& app, std::span<char*> words) {
  const std::vector<const CLI::App*> known = app.get_subcommands([](const CLI::App*) { return true; });
  if (known.empty() || words.empty() || *words[0] == '-' || *words[0] == '\0') return false;
  std::string names;
  for (const CLI::App* command : known) {
    if (command->get_name() == words[0]) return is_unknown_subcommand(*command, words.subspan(1));
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  std::fprintf(stderr, "winnow: expected one of %s, got \"%s\" (see %s --help)\n", names.c_str(), one_line(words[0]).c_str(),
               full_name(app).c_str());
  return true;
}

int run(int argc, char** argv) {
  CLI::App app("Winnow makes video diffusion transformers faster by doing less of the attention that does not matter.", "winnow");
  app.set_version_flag("--version", std::string("winnow ") + winnow::version());
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.formatter(std::make_shared<winnow::cli::HelpFormatter>());
  app.footer(kFooter);
  app.require_subcommand(1);
  app.fallthrough(false);
  winnow::cli::Action action;
  winnow::cli::add_generate(app, action);
  winnow::cli::add_capture(app, action);
  winnow::cli::add_attend(app, action);
  winnow::cli::add_compare(app, action);
  winnow::cli::add_compare_cache(app, action);
  winnow::cli::add_info(app, action);
  winnow::cli::add_calibrate(app, action);
  winnow::cli::add_config(app, action);
  winnow::cli::refuse_empty_values(app);
  if (is_unknown_subcommand(app, std::span(argv, static_cast<std::size_t>(argc)).subspan(argc > 0 ? 1 : 0))) return kUsage;
  std::ostringstream text;
  try {
    app.parse(argc, argv);
    if (action) action();  // may find out that a flag lacks a companion
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return usage_error(app, error);
    app.exit(error, text);  // --help, --version
    std::fputs(text.str().c_str(), stdout);
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw winnow::Error("output", std::string("stdout: ") + std::strerror(errno));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  winnow::cli::catch_interrupts();
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    if (const int signal = winnow::cli::interrupt_signal(); signal != 0) {
      std::fprintf(stderr, "winnow: interrupted, nothing was left half-written\n");
      return 128 + signal;
    }
    const bool is_ours = dynamic_cast<const winnow::Error*>(&error) != nullptr;
    std::fprintf(stderr, "winnow: %s%s\n", is_ours ? "" : "[system] ", one_line(error.what()).c_str());
    return kError;
  }
}
