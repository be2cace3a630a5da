// Sequences under layouts, for the tests of every executor.
#pragma once

#include "exec/attend_case.h"

namespace winnow {

// A sequence under a layout.
struct LayoutCase {
  std::string name;
  Grid grid = {};
  std::vector<TokenSpan> spans = {};
  std::vector<std::int64_t> documents = {};
  std::int64_t tokens = 0;
  LayoutOptions options = {.order = TokenOrder::automatic};
  TokenSequence sequence() const { return {tokens, grid, spans, documents}; }
};

inline PlanGeometry geometry_of(const LayoutCase& c, const Shape& s, int tile_q = 128, int tile_k = 64, int mean_group = 64) {
  PlanGeometry g = geometry_of(s, tile_k, mean_group);
  g.tile_q = tile_q;
  g.query_layout = make_layout(c.sequence(), c.options, tile_q);
  g.key_layout = make_layout(c.sequence(), c.options, tile_k);
  g.validate();
  return g;
}

inline std::vector<LayoutCase> layout_cases() {
  const auto kVideo = SpanKind::video;
  const auto kExact = SpanKind::exact;
  const auto kPadding = SpanKind::padding;
  std::vector<LayoutCase> all;
  all.push_back({.name = "cubes 5x9x7", .grid = {5, 9, 7}, .tokens = 315});
  all.push_back({.name = "cubes 2x3x5", .grid = {2, 3, 5}, .tokens = 30});
  all.push_back({.name = "cubes 1x1x1", .grid = {1, 1, 1}, .tokens = 1});
  all.push_back({.name = "cubes 2x6x5 of 9x12x4", .grid = {9, 12, 4}, .tokens = 432, .options = {.cube = {2, 6, 5}}});
  all.push_back({.name = "documents", .documents = {0, 1, 64, 128, 128, 193, 450}, .tokens = 450});
  all.push_back({.name = "documents of cubes, short ones exact",
                 .spans = {{0, 300, kVideo, {3, 10, 10}}, {300, 340, kExact}, {340, 400, kVideo, {1, 6, 10}}, {400, 420, kPadding}},
                 .documents = {0, 340, 420},
                 .tokens = 420,
                 .options = {.min_document = 100}});
  all.push_back({.name = "text, two videos, image, padding",
                 .spans = {{0, 77, kExact},
                           {77, 77 + 216, kVideo, {6, 6, 6}},
                           {293, 293 + 144, kVideo, {4, 6, 6}},
                           {437, 470, kExact},
                           {470, 500, kPadding}},
                 .tokens = 500});
  all.push_back({.name = "padding only", .spans = {{0, 40, kPadding}}, .tokens = 40});
  all.push_back({.name = "padding in front", .spans = {{0, 3, kPadding}, {3, 203, kVideo}}, .tokens = 203});
  return all;
}

// `share` of each row's candidates at random, and all that the layout asks for.
inline std::vector<std::vector<std::int32_t>> some_rows(const PlanGeometry& g, double share, unsigned seed) {
  std::mt19937 rng(seed);
  std::uniform_real_distribution<double> uniform;
  std::vector<std::vector<std::int32_t>> rows(static_cast<std::size_t>(g.rows()));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto row = static_cast<std::int64_t>(r);
    const std::int64_t i = g.query_tile(row);
    const TileRange range = g.candidates(g.batch(row), i);
    for (std::int64_t t = range.begin; t < range.end; ++t) {
      const bool exact = (g.query_layout && g.query_layout->exact(i)) || (g.key_layout && g.key_layout->exact(t));
      if (exact || uniform(rng) < share) rows[r].push_back(static_cast<std::int32_t>(t));
    }
  }
  return rows;
}

// Rows tokens[0..n) of x, as a tensor of its own.
inline void take_rows(const Buffer& from, const std::int32_t* tokens, Buffer& to) {
  const auto& n = to.view.shape;
  for (std::int64_t b = 0; b < n[0]; ++b)
    for (std::int64_t s = 0; s < n[1]; ++s)
      for (std::int64_t h = 0; h < n[2]; ++h)
        for (std::int64_t d = 0; d < n[3]; ++d) {
          const auto at = [&](const TensorView& x, std::int64_t token) {
            return b * x.stride(0) + token * x.stride(1) + h * x.stride(2) + d;
          };
          put(to.view, at(to.view, s), get(from.view, at(from.view, tokens[s])));
        }
}

// Outputs of tokens [begin, end) of batch entry 0.
inline std::vector<float> part(const Outcome& o, const Shape& s, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = s.H * s.D;
  return {o.out.begin() + begin * width, o.out.begin() + end * width};
}

}  // namespace winnow
