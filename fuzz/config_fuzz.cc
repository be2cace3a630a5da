// Any JSON text is either a valid configuration whose to_json() reads back the same, or throws Error. Text that could name a
// file is left out. Seeds: fuzz/corpus/config.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "winnow/error.h"
#include "winnow/session.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text = "{" + std::string(reinterpret_cast<const char*>(data), size);
  try {
    const std::string json = winnow::to_json(winnow::parse_attention_config(text));
    if (winnow::to_json(winnow::parse_attention_config(json)) != json) std::abort();
  } catch (const winnow::Error&) {
    return 0;
  }
  return 0;
}
