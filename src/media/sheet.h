// Pictures that show a whole clip, or several, at a glance.
#pragma once

#include <string>
#include <vector>

#include "media/image.h"
#include "winnow/tensor.h"

namespace winnow::media {

// Indices of min(n, num_frames) evenly spaced frames, the first and the last among them (only the first if n is 1).
std::vector<int> evenly_spaced(int num_frames, int n);

// Up to max_frames evenly spaced frames of [F,H,W,3] in a grid, in reading order, each with its frame number.
Image contact_sheet(const TensorView& frames, int max_frames = 12);

struct SheetRow {
  std::string label;  // above the row
  TensorView frames;  // [F,H,W,3]; the same size in every row
};
// One row of up to max_frames frames per clip, the same frame numbers below each other. Throws Error if sizes differ.
Image side_by_side(const std::vector<SheetRow>& rows, int max_frames = 8);

}  // namespace winnow::media
