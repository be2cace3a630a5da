// The only reader of environment variables. docs/environment.md lists them.
#pragma once

#include <string>

namespace winnow::env {

std::string executor();      // WINNOW_EXECUTOR: forces an attention executor by name; empty = choose
int threads();               // WINNOW_THREADS: default number of threads; 0 = one per core. Throws Error if not a number >= 0.
std::string profile();       // WINNOW_PROFILE: a cost profile of this machine, "none" for none; empty = the default place
std::string cache_folder();  // XDG_CACHE_HOME, else HOME/.cache; empty if neither is set
std::string search_path();   // PATH: where programs (ffmpeg) are looked for; empty if unset

}  // namespace winnow::env
