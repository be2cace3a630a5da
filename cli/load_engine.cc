#include "cli/load_engine.h"

#include <filesystem>
#include <string>
#include <system_error>

#include "cli/terminal.h"
#include "core/memory.h"
#include "core/safetensors.h"
#include "winnow/error.h"

namespace winnow::cli {

// Without these checks the system would end the program, or swap for hours, long after the start.
namespace {

namespace fs = std::filesystem;

// Swap included.
double memory_bytes() { return static_cast<double>(usable_memory().total()); }

void check_weights(const GenerateFlags& flags) {
  const double have = memory_bytes();
  double stored = 0.0;
  double loaded = 0.0;  // the file may be f32 and the transformer bf16
  for (const char* part : {"transformer", "transformer_2"}) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(fs::path(flags.model) / part, ignored)) {
      if (entry.path().extension() != ".safetensors" || !entry.is_regular_file(ignored)) continue;
      stored += static_cast<double>(entry.file_size(ignored));
      if (stored <= have / 4.0) continue;  // far from the limit: errors in files are the engine's to find
      loaded += static_cast<double>(SafetensorsFile::count_elements(entry.path().string())) * (flags.dtype == "f32" ? 4.0 : 2.0);
    }
  }
  if (loaded <= have) return;
  throw Error("generate", format("memory: expected at most the %s that this process may use, got %s of weights in %s",
                                 format_bytes(have).c_str(), format_bytes(loaded).c_str(), flags.model.c_str()));
}

}  // namespace

void check_memory(const Estimate& estimate) {
  const double have = memory_bytes();
  const auto need = static_cast<double>(estimate.weight_bytes) + static_cast<double>(estimate.workspace_bytes) +
                    static_cast<double>(estimate.cache_bytes);
  if (need <= have) return;
  throw Error("generate", format("memory: expected at most the %s that this process may use, got %s for %lldx%lld and %lld frames",
                                 format_bytes(have).c_str(), format_bytes(need).c_str(), static_cast<long long>(estimate.width),
                                 static_cast<long long>(estimate.height), static_cast<long long>(estimate.frames)));
}

Engine load_engine(const GenerateFlags& flags, const Progress& progress) {
  check_weights(flags);
  EngineOptions options;
  options.precision = precision(flags);
  options.progress = progress;
  return Engine(flags.model, options);
}

}  // namespace winnow::cli
