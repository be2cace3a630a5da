// TokenLayout: validity, and what is derived from its parts once.
#include "winnow/token_layout.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "winnow/error.h"

namespace winnow {

namespace {

[[noreturn]] void refuse(const char* part, const std::string& expected, std::int64_t found) {
  throw Error("layout", std::string(part) + ": expected " + expected + ", got " + std::to_string(found));
}

// [0] is 0, the last one is `end`, and neighbours differ by at least `least`.
void check_offsets(const char* part, const std::vector<std::int32_t>& offsets, std::size_t end, std::int64_t least) {
  if (offsets.empty() || offsets.front() != 0) refuse(part, "offsets from 0", offsets.empty() ? -1 : offsets.front());
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    if (std::int64_t{offsets[i]} - offsets[i - 1] < least) refuse(part, least > 0 ? "strictly ascending" : "ascending", offsets[i]);
  }
  if (offsets.back() != static_cast<std::int64_t>(end)) refuse(part, "offsets that end with " + std::to_string(end), offsets.back());
}

}  // namespace

TokenLayout::TokenLayout(Parts parts) : parts_(std::move(parts)) {
  constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();
  if (parts_.num_tokens < 0 || parts_.num_tokens > kMaxTokens) refuse("num_tokens", "0 to 2^31 - 1", parts_.num_tokens);
  check_offsets("tile_begin", parts_.tile_begin, parts_.tokens.size(), 1);
  check_offsets("document_begin", parts_.document_begin, parts_.tile_begin.size() - 1, 0);
  if (documents() < 1) refuse("document_begin", "at least one document", documents());
  if (parts_.exact.size() != parts_.tile_begin.size() - 1) {
    refuse("exact", std::to_string(tiles()) + " entries", static_cast<std::int64_t>(parts_.exact.size()));
  }
  for (const std::uint8_t flag : parts_.exact) {
    if (flag > 1) refuse("exact", "0 or 1", flag);
  }

  std::vector<std::int32_t> sorted = parts_.tokens;
  std::ranges::sort(sorted);
  std::int64_t next = 0;
  for (const std::int32_t token : sorted) {
    if (token < 0 || token >= parts_.num_tokens) refuse("tokens", "0 to " + std::to_string(parts_.num_tokens - 1), token);
    if (token < next) refuse("tokens", "every token at most once", token);
    if (token > next) missing_.push_back({next, token});
    next = std::int64_t{token} + 1;
  }
  if (next < parts_.num_tokens) missing_.push_back({next, parts_.num_tokens});

  for (std::int64_t t = 0; t < tiles(); ++t) largest_tile_ = std::max(largest_tile_, begin(t + 1) - begin(t));
  for (std::int64_t d = 0; d < documents(); ++d) {
    const TileRange range = document_tiles(d);
    exact_tiles_.push_back(std::count(parts_.exact.begin() + range.begin, parts_.exact.begin() + range.end, std::uint8_t{1}));
  }
}

std::int64_t TokenLayout::document(std::int64_t tile) const {
  if (documents() == 1) return 0;
  return std::ranges::upper_bound(parts_.document_begin, tile) - parts_.document_begin.begin() - 1;
}

TileRange TokenLayout::document_tiles(std::int64_t document) const {
  const auto d = static_cast<std::size_t>(document);
  return {parts_.document_begin[d], parts_.document_begin[d + 1]};
}

}  // namespace winnow
