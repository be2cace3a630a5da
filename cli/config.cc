// winnow config: what an attention setting resolves to.
#include <cstdio>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "winnow/session.h"

namespace winnow::cli {

void add_config(CLI::App& app, Action& action) {
  CLI::App* config = app.add_subcommand("config", "Show what an attention setting resolves to");
  config->require_subcommand(1);
  CLI::App* print = config->add_subcommand("print", "Print every key of a setting as one line of JSON, defaults filled in");
  const auto attention = std::make_shared<std::string>("mean_pool");
  print->add_option("--attention", *attention, "Method name, JSON file or JSON text")->capture_default_str()->type_name("NAME|FILE|JSON");
  print->footer(R"(Examples:
  winnow config print --attention mean_pool
  winnow config print --attention '{"method":"skip_softmax","threshold":1e-4,"skip_first_steps":2}' > setting.json)");
  print->callback(
      [attention, &action] { action = [attention] { std::printf("%s\n", to_json(parse_attention_config(*attention)).c_str()); }; });
}

}  // namespace winnow::cli
