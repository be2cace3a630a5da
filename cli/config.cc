// winnow config: what an attention or cache setting resolves to.
#include <cstdio>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "winnow/session.h"
#include "winnow/step_cache.h"

namespace winnow::cli {

void add_config(CLI::App& app, Action& action) {
  CLI::App* config = app.add_subcommand("config", "Show what an attention or cache setting resolves to");
  config->require_subcommand(1);
  config->footer("");  // not that of `winnow --help`
  CLI::App* print = config->add_subcommand("print", "Print a setting as one line of JSON: every key that has a value, defaults filled in");
  const auto attention = std::make_shared<std::string>("mean_pool");
  CLI::Option* option = print->add_option("--attention", *attention, "Method name, JSON file or JSON text")
                            ->capture_default_str()
                            ->type_name("NAME|FILE|JSON");
  const auto cache = std::make_shared<std::string>();
  print->add_option("--cache", *cache, "A step cache's setting instead")->excludes(option)->type_name("NAME|FILE|JSON");
  print->footer(R"(Examples:
  winnow config print --attention mean_pool
  winnow config print --cache first_block
  winnow config print --attention '{"method":"skip_softmax","threshold":1e-4,"skip_first_steps":2}' > setting.json)");
  print->callback([attention, cache, &action] {
    action = [attention, cache] {
      const bool is_cache = !cache->empty();
      std::printf("%s\n", (is_cache ? to_json(parse_step_cache_config(*cache)) : to_json(parse_attention_config(*attention))).c_str());
    };
  });
}

}  // namespace winnow::cli
