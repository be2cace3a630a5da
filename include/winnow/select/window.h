// Selection by position: static space-time windows.
#pragma once

#include "winnow/select.h"

namespace winnow {

// A query tile keeps the key tiles near it on the token grid, whatever their values; the same for every head.
// Tiles are boxes: the least and largest frame, row and column of their tokens (token = (frame*height + row)*width + column). A key
// tile is kept if the gap between the two boxes is at most `frames` * the grid's frames along time, `height` * its height and
// `width` * its width, or if it has a token of the first `sink_frames` frames. Full height and width make frame bands.
// A tile's own position is always near it, so that no row is empty.
struct Window {
  static constexpr const char* kName = "window";
  // Shares of the grid's extents, in [0,1]; 1 = everything along that axis.
  float frames = 0.125F;
  float height = 1.0F;
  float width = 1.0F;
  int sink_frames = 1;  // frames that every query sees
  bool means = true;    // tiles not kept are represented by their means
  void validate() const;
  template <class Self, class Visit>
  static void options(Self& self, Visit&& visit) {
    visit("frames", self.frames);
    visit("height", self.height);
    visit("width", self.width);
    visit("sink_frames", self.sink_frames);
    visit("means", self.means);
  }
};
// Needs PlanSpec::grid with as many tokens as q and k; throws Error before any work where positions are unknown.
TilePlan select(const TensorView& q, const TensorView& k, const PlanSpec& spec, const Window& options, Workspace& ws);

}  // namespace winnow
