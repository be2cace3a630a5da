// A 5x7 bitmap font: capitals, digits and the punctuation of our labels.
#pragma once

#include <cstdint>

namespace winnow::media {

// Seven rows from the top; bit 4 is the leftmost of five pixels. Small letters give capitals; unknown characters a box.
struct Glyph {
  std::uint8_t rows[7];
};
const Glyph& glyph(char c);

}  // namespace winnow::media
