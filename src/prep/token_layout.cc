// From the make-up of a sequence to its tiles: declared in winnow/token_layout.h.
#include "winnow/token_layout.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "winnow/error.h"

namespace winnow {

namespace {

[[noreturn]] void refuse(const std::string& argument, const std::string& expected, const std::string& found) {
  throw Error("layout", argument + ": expected " + expected + ", got " + found);
}

std::string text(std::int64_t x) { return std::to_string(x); }
std::string text(const Grid& g) { return text(g.frames) + "x" + text(g.height) + "x" + text(g.width); }

// One video, or a run of exact or padding tokens. `grid` is known only if it has as many tokens.
struct Segment {
  std::int64_t begin;
  std::int64_t end;
  SpanKind kind;
  Grid grid;
  bool contradicts = false;  // a grid is given that does not fit
};

// Calls f(segment) for all segments of tokens [begin, end), in order.
template <class F>
void for_each_segment(const TokenSequence& sequence, std::int64_t begin, std::int64_t end, F f) {
  const auto fitting = [&](const Grid& grid, std::int64_t tokens) { return grid.known() && grid.tokens() == tokens ? grid : Grid{}; };
  if (sequence.spans.empty()) {
    const Grid grid = fitting(sequence.grid, end - begin);
    f(Segment{begin, end, SpanKind::video, grid, sequence.grid.known() && !grid.known() && end > begin});
    return;
  }
  for (const TokenSpan& span : sequence.spans) {
    if (span.begin < begin || span.end > end || span.begin == span.end) continue;
    const bool video = span.kind == SpanKind::video;
    const Grid grid = !video ? Grid{} : span.grid.known() ? span.grid : fitting(sequence.grid, span.end - span.begin);
    f(Segment{span.begin, span.end, span.kind, grid});
  }
}

template <class F>
void for_each_document(const TokenSequence& sequence, F f) {
  if (sequence.documents.empty()) return f(std::int64_t{0}, sequence.num_tokens);
  for (std::size_t d = 1; d < sequence.documents.size(); ++d) f(sequence.documents[d - 1], sequence.documents[d]);
}

// Cubes in raster order, each in raster order; those at the far faces may be smaller.
void append_cubes(const Grid& grid, const std::array<int, 3>& cube, std::int64_t first, std::vector<std::int32_t>& tokens) {
  for (std::int64_t t0 = 0; t0 < grid.frames; t0 += cube[0])
    for (std::int64_t y0 = 0; y0 < grid.height; y0 += cube[1])
      for (std::int64_t x0 = 0; x0 < grid.width; x0 += cube[2])
        for (std::int64_t t = t0; t < std::min(t0 + cube[0], grid.frames); ++t)
          for (std::int64_t y = y0; y < std::min(y0 + cube[1], grid.height); ++y)
            for (std::int64_t x = x0; x < std::min(x0 + cube[2], grid.width); ++x)
              tokens.push_back(static_cast<std::int32_t>(first + (t * grid.height + y) * grid.width + x));
}

class Builder {
 public:
  Builder(const TokenSequence& sequence, const LayoutOptions& options, int tile) : sequence_(sequence), options_(options), tile_(tile) {
    parts_.num_tokens = sequence.num_tokens;
    parts_.document_begin.clear();
    parts_.document_begin.push_back(0);
  }

  std::shared_ptr<const TokenLayout> build() {
    for_each_document(sequence_, [&](std::int64_t begin, std::int64_t end) { add_document(begin, end); });
    return trivial() ? nullptr : std::make_shared<const TokenLayout>(std::move(parts_));
  }

 private:
  void add_document(std::int64_t begin, std::int64_t end) {
    std::int64_t size = 0;
    for_each_segment(sequence_, begin, end, [&](const Segment& s) { size += s.kind == SpanKind::padding ? 0 : s.end - s.begin; });
    const bool short_document = size < options_.min_document;
    for_each_segment(sequence_, begin, end, [&](const Segment& s) {
      if (s.kind == SpanKind::video) add_video(s, short_document);
    });
    for_each_segment(sequence_, begin, end, [&](const Segment& s) {
      if (s.kind == SpanKind::exact) append_run(s);
    });
    cut(true);
    parts_.document_begin.push_back(static_cast<std::int32_t>(parts_.exact.size()));
  }

  void add_video(const Segment& s, bool exact) {
    if (s.grid.known() && options_.order != TokenOrder::raster && !exact) {
      append_cubes(s.grid, options_.cube, s.begin, parts_.tokens);
    } else {
      append_run(s);
    }
    cut(exact);
  }

  void append_run(const Segment& s) {
    for (std::int64_t token = s.begin; token < s.end; ++token) parts_.tokens.push_back(static_cast<std::int32_t>(token));
  }

  // Tiles of the tokens that are in none yet.
  void cut(bool exact) {
    const auto end = static_cast<std::int64_t>(parts_.tokens.size());
    for (std::int64_t begin = parts_.tile_begin.back(); begin < end;) {
      begin = std::min(begin + tile_, end);
      parts_.tile_begin.push_back(static_cast<std::int32_t>(begin));
      parts_.exact.push_back(exact ? 1 : 0);
    }
  }

  // Whether this is what tiles are without a layout.
  bool trivial() const {
    if (parts_.document_begin.size() != 2 || static_cast<std::int64_t>(parts_.tokens.size()) != parts_.num_tokens) return false;
    for (std::size_t i = 0; i < parts_.tokens.size(); ++i) {
      if (parts_.tokens[i] != static_cast<std::int32_t>(i)) return false;
    }
    for (std::size_t t = 0; t < parts_.exact.size(); ++t) {
      if (parts_.exact[t] != 0 || parts_.tile_begin[t] != static_cast<std::int64_t>(t) * tile_) return false;
    }
    return true;
  }

  const TokenSequence& sequence_;
  const LayoutOptions& options_;
  int tile_;
  TokenLayout::Parts parts_;
};

}  // namespace

void validate(const TokenSequence& sequence) {
  constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();
  if (sequence.num_tokens < 0 || sequence.num_tokens > kMaxTokens) refuse("num_tokens", "0 to 2^31 - 1", text(sequence.num_tokens));
  const auto documents = sequence.documents;
  if (!documents.empty() &&
      (documents.size() < 2 || documents.front() != 0 || documents.back() != sequence.num_tokens || !std::ranges::is_sorted(documents))) {
    refuse(
        "documents", "ascending offsets from 0 to " + text(sequence.num_tokens),
        text(static_cast<std::int64_t>(documents.size())) + " offsets from " + text(documents.front()) + " to " + text(documents.back()));
  }
  std::int64_t next = 0;
  for (std::size_t i = 0; i < sequence.spans.size(); ++i) {
    const TokenSpan& span = sequence.spans[i];
    const std::string name = "spans[" + text(static_cast<std::int64_t>(i)) + "]";
    if (span.begin != next || span.end < span.begin) {
      refuse(name, "a range that begins with token " + text(next), text(span.begin) + " to " + text(span.end));
    }
    if (span.grid.known() && span.kind == SpanKind::video && span.grid.tokens() != span.end - span.begin) {
      refuse(name + ".grid", "as many tokens as the span, " + text(span.end - span.begin), text(span.grid));
    }
    const auto border = std::ranges::upper_bound(documents, span.begin);
    if (border != documents.end() && *border < span.end) {
      refuse(name, "one document's tokens, which end with " + text(*border), text(span.begin) + " to " + text(span.end));
    }
    next = span.end;
  }
  if (!sequence.spans.empty() && next != sequence.num_tokens) refuse("spans", "all tokens, " + text(sequence.num_tokens), text(next));
}

void TokenOptions::validate() const {
  for (const int side : cube) {
    if (side < 1) throw Error("config", "cube: expected three sides of at least 1, got " + text(side));
  }
  if (token_order == TokenOrder::raster && cube != TokenOptions{}.cube) {
    throw Error("config", "token_order: expected cubes or auto beside a cube, got raster");
  }
}

bool positions_known(const TokenSequence& sequence, TokenOrder order) {
  bool known = true;
  for_each_document(sequence, [&](std::int64_t begin, std::int64_t end) {
    for_each_segment(sequence, begin, end, [&](const Segment& s) {
      known = known && !s.contradicts && (order != TokenOrder::cubes || s.kind != SpanKind::video || s.grid.known() || s.begin == s.end);
    });
  });
  return known;
}

std::shared_ptr<const TokenLayout> make_layout(const TokenSequence& sequence, const LayoutOptions& options, int tile) {
  validate(sequence);
  for (const int side : options.cube) {
    if (side < 1) refuse("cube", "sides of at least 1", text(side));
  }
  if (tile < 1) refuse("tile", "at least 1 token", text(tile));
  return Builder(sequence, options, tile).build();
}

}  // namespace winnow
