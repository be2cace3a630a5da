#include "media/sheet.h"

#include <algorithm>
#include <cmath>

#include "media/frames.h"
#include "winnow/error.h"

namespace winnow::media {

namespace {

constexpr Color kBackground = {24, 26, 30};
constexpr Color kText = {232, 232, 226};
constexpr Color kFaint = {140, 146, 156};
constexpr int kGap = 6;
constexpr int kMargin = 10;
// Frames are shown about this high: small ones enlarged so that labels are readable beside them, large ones reduced.
constexpr int kTargetHeight = 192;

FrameScale choose_scale(const TensorView& frames) {
  const int height = static_cast<int>(frames.size(1));
  FrameScale scale;
  if (height <= kTargetHeight) {
    scale.up = std::max(1, kTargetHeight / height);
  } else {
    // A frame much wider than high must keep at least one pixel in each direction.
    scale.down = std::clamp((height + kTargetHeight - 1) / kTargetHeight, 1, static_cast<int>(std::min(frames.size(1), frames.size(2))));
  }
  return scale;
}

TensorView frame_at(const TensorView& frames, int f) { return frames.slice(0, f, f + 1).reshape({frames.size(1), frames.size(2), 3}); }

}  // namespace

std::vector<int> evenly_spaced(int num_frames, int n) {
  n = std::clamp(n, 1, num_frames);
  std::vector<int> indices;
  for (int i = 0; i < n; ++i) {
    indices.push_back(n == 1 ? 0 : static_cast<int>(std::lround(static_cast<double>(i) * (num_frames - 1) / (n - 1))));
  }
  return indices;
}

Image contact_sheet(const TensorView& frames, int max_frames) {
  check_frames("sheet", frames);
  const std::vector<int> picked = evenly_spaced(static_cast<int>(frames.size(0)), max_frames);
  const int count = static_cast<int>(picked.size());
  const int columns = static_cast<int>(std::ceil(std::sqrt(static_cast<double>(count) * 4.0 / 3.0)));
  const int rows = (count + columns - 1) / columns;
  const FrameScale scale = choose_scale(frames);
  const int cell_width = scale.apply(static_cast<int>(frames.size(2))) + kGap;
  const int cell_height = scale.apply(static_cast<int>(frames.size(1))) + kGap + text_height(1) + 3;
  Image image(2 * kMargin + std::min(columns, count) * cell_width - kGap, 2 * kMargin + rows * cell_height - kGap, kBackground);
  for (int i = 0; i < count; ++i) {
    const int x = kMargin + (i % columns) * cell_width;
    const int y = kMargin + (i / columns) * cell_height;
    draw_text(image, x, y, std::to_string(picked[static_cast<std::size_t>(i)]), 1, kFaint);
    draw_frame(image, x, y + text_height(1) + 3, frame_at(frames, picked[static_cast<std::size_t>(i)]), scale);
  }
  return image;
}

Image side_by_side(const std::vector<SheetRow>& rows, int max_frames) {
  if (rows.empty()) throw Error("sheet", "expected at least one row, got none");
  const TensorView& first = rows.front().frames;
  for (const SheetRow& row : rows) {
    check_frames("sheet", row.frames);
    if (row.frames.shape != first.shape) {
      throw Error("sheet", "row \"" + row.label + "\": expected " + first.describe() + ", got " + row.frames.describe());
    }
  }
  const std::vector<int> picked = evenly_spaced(static_cast<int>(first.size(0)), max_frames);
  const FrameScale scale = choose_scale(first);
  const int frame_width = scale.apply(static_cast<int>(first.size(2)));
  const int frame_height = scale.apply(static_cast<int>(first.size(1)));
  constexpr int kTextScale = 2;
  const int row_height = text_height(kTextScale) + kGap + frame_height + 2 * kGap;
  int width = static_cast<int>(picked.size()) * (frame_width + kGap) - kGap;
  for (const SheetRow& row : rows) width = std::max(width, text_width(row.label, kTextScale));
  Image image(width + 2 * kMargin, static_cast<int>(rows.size()) * row_height + 2 * kMargin, kBackground);
  int y = kMargin;
  for (const SheetRow& row : rows) {
    draw_text(image, kMargin, y, row.label, kTextScale, kText);
    int x = kMargin;
    for (const int f : picked) {
      draw_frame(image, x, y + text_height(kTextScale) + kGap, frame_at(row.frames, f), scale);
      x += frame_width + kGap;
    }
    y += row_height;
  }
  for (int i = 0; i < static_cast<int>(picked.size()); ++i) {  // frame numbers, once
    draw_text(image, kMargin + i * (frame_width + kGap), y, std::to_string(picked[static_cast<std::size_t>(i)]), 1, kFaint);
  }
  return image;
}

}  // namespace winnow::media
