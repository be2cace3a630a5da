#include "media/image.h"

#include <algorithm>
#include <cstddef>

#include "media/font.h"
#include "media/frames.h"

namespace winnow::media {

namespace {

constexpr int kCell = 6;  // glyph width plus one column of air

void fill(Image& image, int x, int y, int width, int height, Color color) {
  const int right = std::min(x + width, image.width);
  const int bottom = std::min(y + height, image.height);
  for (int row = std::max(y, 0); row < bottom; ++row) {
    for (int column = std::max(x, 0); column < right; ++column) std::copy(color.begin(), color.end(), image.pixel(column, row));
  }
}

}  // namespace

Image::Image(int width_in, int height_in, Color background)
    : width(width_in), height(height_in), rgb(3 * static_cast<std::size_t>(width_in) * static_cast<std::size_t>(height_in)) {
  fill(*this, 0, 0, width, height, background);
}

int text_width(std::string_view text, int scale) { return text.empty() ? 0 : (kCell * static_cast<int>(text.size()) - 1) * scale; }

void draw_text(Image& image, int x, int y, std::string_view text, int scale, Color color) {
  for (const char c : text) {
    const Glyph& g = glyph(c);
    for (int row = 0; row < 7; ++row) {
      for (int column = 0; column < 5; ++column) {
        if (((g.rows[row] >> (4 - column)) & 1) != 0) fill(image, x + column * scale, y + row * scale, scale, scale, color);
      }
    }
    x += kCell * scale;
  }
}

void draw_frame(Image& image, int x, int y, const TensorView& frame, const FrameScale& scale) {
  const int height = static_cast<int>(frame.size(0));
  const int width = static_cast<int>(frame.size(1));
  const auto* rgb = frame.as<float>();
  const int out_height = std::min(scale.apply(height), image.height - y);
  const int out_width = std::min(scale.apply(width), image.width - x);
  for (int row = 0; row < out_height; ++row) {
    for (int column = 0; column < out_width; ++column) {
      const int top = row * scale.down / scale.up;
      const int left = column * scale.down / scale.up;
      for (int channel = 0; channel < 3; ++channel) {
        float sum = 0.0F;
        for (int dy = 0; dy < scale.down; ++dy) {
          for (int dx = 0; dx < scale.down; ++dx) sum += clamp_unit(rgb[3 * ((top + dy) * width + left + dx) + channel]);
        }
        image.pixel(x + column, y + row)[channel] = to_u8(sum / static_cast<float>(scale.down * scale.down));
      }
    }
  }
}

}  // namespace winnow::media
