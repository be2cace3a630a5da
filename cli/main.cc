// winnow: the command line. Results go to stdout, progress and errors to stderr.
// Exit codes: 0 done, 1 an error (one line on stderr), 2 wrong usage, 128 + signal when interrupted (130 for Ctrl-C).
#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <sstream>
#include <string>

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

// CLI11 would print several lines and use exit codes above 100.
int usage_error(const CLI::App& app, const CLI::ParseError& error) {
  std::string command = "winnow";
  for (const CLI::App* sub : app.get_subcommands()) command += " " + sub->get_name();
  std::fprintf(stderr, "winnow: %s (see %s --help)\n", one_line(error.what()).c_str(), command.c_str());
  return kUsage;
}

// CLI11 would only say that a subcommand is required.
bool is_unknown_subcommand(const CLI::App& app, const std::string& word) {
  if (word.empty() || word[0] == '-') return false;
  std::string names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (sub->get_name() == word) return false;
    names += (names.empty() ? "" : ", ") + sub->get_name();
  }
  std::fprintf(stderr, "winnow: expected one of %s, got \"%s\" (see winnow --help)\n", names.c_str(), one_line(word).c_str());
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
  if (argc > 1 && is_unknown_subcommand(app, argv[1])) return kUsage;
  std::ostringstream text;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return usage_error(app, error);
    app.exit(error, text);  // --help, --version
    std::fputs(text.str().c_str(), stdout);
  }
  if (action) action();
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
    const auto* usage = dynamic_cast<const CLI::ParseError*>(&error);  // found only after parsing: missing companions of a flag
    const bool is_ours = usage != nullptr || dynamic_cast<const winnow::Error*>(&error) != nullptr;
    std::fprintf(stderr, "winnow: %s%s\n", is_ours ? "" : "[system] ", one_line(error.what()).c_str());
    return usage != nullptr ? kUsage : kError;
  }
}
