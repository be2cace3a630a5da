// Strict reading of small JSON documents: the configuration files of a model.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace winnow {

// The whole file as bytes. Throws Error("[operation] path: ...") if it cannot be read or is larger than `max_bytes`.
std::string read_text_file(const std::string& path, const std::string& operation, std::size_t max_bytes = std::size_t{64} << 20U);

// Throws Error naming `name` for text that is not UTF-8 JSON, repeats a key within an object or nests deeper than 64.
nlohmann::json parse_json(std::string_view text, const std::string& name, const std::string& operation);

}  // namespace winnow
