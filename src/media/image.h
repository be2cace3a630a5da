// An 8-bit RGB picture that is drawn into, and the few drawing steps that contact sheets need.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "winnow/tensor.h"

namespace winnow::media {

using Color = std::array<std::uint8_t, 3>;

struct Image {
  int width = 0;
  int height = 0;
  std::vector<std::uint8_t> rgb;  // rows from the top, 3 bytes a pixel

  Image() = default;
  Image(int width, int height, Color background);
  std::uint8_t* pixel(int x, int y) {
    return rgb.data() + 3 * (static_cast<std::size_t>(y) * static_cast<std::size_t>(width) + static_cast<std::size_t>(x));
  }
  const std::uint8_t* pixel(int x, int y) const { return const_cast<Image*>(this)->pixel(x, y); }
};

// Glyphs are 5x7 pixels in cells of 6x8; `scale` enlarges them. Letters appear as capitals; what the font lacks is a box.
int text_width(std::string_view text, int scale);
inline int text_height(int scale) { return 7 * scale; }
// (x, y) is the upper left corner. What falls outside the picture is cut off.
void draw_text(Image& image, int x, int y, std::string_view text, int scale, Color color);

// Enlarging by a whole number (pixels repeat) or reducing by one (pixels average): `up` or `down` is 1.
struct FrameScale {
  int up = 1;
  int down = 1;
  int apply(int size) const { return size / down * up; }
};
// One frame [H,W,3] contiguous f32 in [0,1].
void draw_frame(Image& image, int x, int y, const TensorView& frame, const FrameScale& scale);

}  // namespace winnow::media
