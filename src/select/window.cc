// Space-time windows of tiles. Rule: include/winnow/select/window.h.
#include "winnow/select/window.h"

#include "core/text.h"
#include "select/rows.h"
#include "winnow/error.h"

namespace winnow {

namespace {

// Least and largest frame, row and column of a tile's tokens.
struct Box {
  std::int64_t low[3];
  std::int64_t high[3];

  // Of the tokens at positions [begin, end); a null list means that positions are tokens.
  static Box of(const std::int32_t* tokens, std::int64_t begin, std::int64_t end, const Grid& grid) {
    Box box{{grid.frames, grid.height, grid.width}, {0, 0, 0}};
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t token = tokens != nullptr ? tokens[i] : i;
      const std::int64_t at[3] = {token / grid.width / grid.height, token / grid.width % grid.height, token % grid.width};
      for (int axis = 0; axis < 3; ++axis) {
        box.low[axis] = std::min(box.low[axis], at[axis]);
        box.high[axis] = std::max(box.high[axis], at[axis]);
      }
    }
    return box;
  }

  // Steps between the boxes along an axis; 0 where they overlap.
  std::int64_t gap(const Box& other, int axis) const {
    return std::max<std::int64_t>({low[axis] - other.high[axis], other.low[axis] - high[axis], 0});
  }
};

class Windows {
 public:
  Windows(const PlanGeometry& geometry, const Grid& grid, const Window& options, Workspace& ws)
      : reach_{options.frames * static_cast<float>(grid.frames), options.height * static_cast<float>(grid.height),
               options.width * static_cast<float>(grid.width)},
        sink_frames_(options.sink_frames),
        tiles_(geometry.Gk()),
        ld_(padded(geometry.Gk())),
        queries_(boxes(
            geometry.Gq(), ws,
            [&](std::int64_t i) { return Box::of(geometry.query_tokens(), geometry.query_begin(i), geometry.query_begin(i + 1), grid); })),
        keys_(boxes(geometry.Gk(), ws, [&](std::int64_t j) {
          return Box::of(geometry.key_tokens(), geometry.key_begin(0, j), geometry.key_begin(0, j + 1), grid);
        })) {}

  // 1 for tiles of the window, else 0.
  void operator()(std::int64_t, std::int64_t, std::int64_t begin, std::int64_t end, int, float* out) const {
    for (std::int64_t i = begin; i < end; ++i, out += ld_) {
      for (std::int64_t j = 0; j < tiles_; ++j) out[j] = near(queries_[i], keys_[j]) ? 1.0F : 0.0F;
    }
  }

 private:
  template <class BoxOf>
  static const Box* boxes(std::int64_t tiles, Workspace& ws, BoxOf box_of) {
    auto* found = ws.allocate<Box>(static_cast<std::size_t>(tiles));
    for (std::int64_t i = 0; i < tiles; ++i) found[i] = box_of(i);
    return found;
  }

  bool near(const Box& query, const Box& key) const {
    if (key.low[0] < sink_frames_) return true;
    for (int axis = 0; axis < 3; ++axis) {
      if (static_cast<float>(query.gap(key, axis)) > reach_[axis]) return false;
    }
    return true;
  }

  float reach_[3];
  std::int64_t sink_frames_;
  std::int64_t tiles_;
  std::int64_t ld_;
  const Box* queries_;  // [Gq]
  const Box* keys_;     // [Gk]
};

}  // namespace

void Window::validate() const {
  const auto check = [](const char* key, float share) {
    if (!(share >= 0.0F && share <= 1.0F))
      throw Error("config", std::string(key) + ": expected a number in [0,1], got " + short_number(share));
  };
  check("frames", frames);
  check("height", height);
  check("width", width);
  if (sink_frames < 0) throw Error("config", "sink_frames: expected >= 0, got " + std::to_string(sink_frames));
}

TilePlan select(const TensorView& q, const TensorView& k, const PlanSpec& spec, const Window& options, Workspace& ws) {
  options.validate();
  const PlanGeometry geometry = plan_geometry(q, k, spec);
  if (spec.grid.tokens() != geometry.Sq || geometry.Sq != geometry.Sk) {
    throw Error("select", "window: expected a grid of " + std::to_string(geometry.Sq) + " tokens for queries and keys alike, got " +
                              std::to_string(spec.grid.frames) + "x" + std::to_string(spec.grid.height) + "x" +
                              std::to_string(spec.grid.width) + " and " + std::to_string(geometry.Sk) + " keys");
  }
  const Budget inside{Budget::Kind::threshold, 1.0F};
  return select_rows(geometry, spec, {.budget = inside, .means = options.means}, ws,
                     [&] { return Windows(geometry, spec.grid, options, ws); });
}

}  // namespace winnow
