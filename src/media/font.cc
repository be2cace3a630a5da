#include "media/font.h"

#include <array>
#include <string_view>

namespace winnow::media {

namespace {

// Drawn as text, eight glyphs a strip, one blank column between them.
struct Strip {
  std::string_view characters;
  std::array<std::string_view, 7> rows;
};

constexpr std::array kStrips = {
    Strip{"ABCDEFGH",
          {" ###  ####   #### ####  ##### #####  #### #   #", "#   # #   # #     #   # #     #     #     #   #",
           "#   # #   # #     #   # #     #     #     #   #", "##### ####  #     #   # ####  ####  #  ## #####",
           "#   # #   # #     #   # #     #     #   # #   #", "#   # #   # #     #   # #     #     #   # #   #",
           "#   # ####   #### ####  ##### #      #### #   #"}},
    Strip{"IJKLMNOP",
          {"#####   ### #   # #     #   # #   #  ###  #### ", "  #      #  #  #  #     ## ## ##  # #   # #   #",
           "  #      #  # #   #     # # # # # # #   # #   #", "  #      #  ##    #     # # # # # # #   # #### ",
           "  #      #  # #   #     #   # #  ## #   # #    ", "  #   #  #  #  #  #     #   # #   # #   # #    ",
           "#####  ##   #   # ##### #   # #   #  ###  #    "}},
    Strip{"QRSTUVWX",
          {" ###  ####   #### ##### #   # #   # #   # #   #", "#   # #   # #       #   #   # #   # #   # #   #",
           "#   # #   # #       #   #   # #   # #   #  # # ", "#   # ####   ###    #   #   # #   # # # #   #  ",
           "# # # # #       #   #   #   #  # #  # # #  # # ", "#  #  #  #      #   #   #   #  # #  ## ## #   #",
           " ## # #   # ####    #    ###    #   #   # #   #"}},
    Strip{"YZ012345",
          {"#   # #####  ###    #    ###   ###  #   # #####", "#   #     # #   #  ##   #   # #   # #   # #    ",
           " # #     #  #  ##   #       #     # #   # #### ", "  #     #   # # #   #      #    ##  #####     #",
           "  #    #    ##  #   #    ##       #     #     #", "  #   #     #   #   #   #     #   #     # #   #",
           "  #   #####  ###   ###  #####  ###      #  ### "}},
    Strip{"6789.,:;",
          {" ###  #####  ###   ###                         ", "#         # #   # #   #                         ",
           "#        #  #   # #   #               ##    ##  ", "####    #    ###   ####               ##    ##  ",
           "#   #   #   #   #     #                         ", "#   #   #   #   #     #  ##    ##     ##    ##  ",
           " ###    #    ###   ###   ##    #      ##    #   "}},
    Strip{"-_+=/%()",
          {"                            # ##  #    #   #   ", "              #             # ##  #   #     #  ",
           "              #   #####    #     #   #       # ", "#####       #####         #     #    #       # ",
           "              #   #####  #     #     #       # ", "              #         #     #  ##   #     #  ",
           "      #####             #     #  ##    #   #   "}},
    Strip{"<>[]*!?'",
          {"   #   #     ###   ###          #    ###    #  ", "  #     #    #       #  # # #   #   #   #   #  ",
           " #       #   #       #   ###    #       #   #  ", "#         #  #       #  #####   #     ##       ",
           " #       #   #       #   ###    #     #        ", "  #     #    #       #  # # #                  ",
           "   #   #     ###   ###          #     #        "}},
};

constexpr Glyph kBox = {{0x1F, 0x11, 0x11, 0x11, 0x11, 0x11, 0x1F}};
constexpr Glyph kBlank = {{0, 0, 0, 0, 0, 0, 0}};

constexpr std::array<Glyph, 128> make_font() {
  std::array<Glyph, 128> font{};
  for (Glyph& g : font) g = kBox;
  font[' '] = kBlank;
  for (const Strip& strip : kStrips) {
    for (std::size_t i = 0; i < strip.characters.size(); ++i) {
      Glyph g = kBlank;
      for (std::size_t row = 0; row < 7; ++row) {
        const std::string_view cells = strip.rows[row].substr(6 * i, 5);
        for (std::size_t column = 0; column < cells.size(); ++column) {
          if (cells[column] == '#') g.rows[row] = static_cast<std::uint8_t>(g.rows[row] | (0x10U >> column));
        }
      }
      const char c = strip.characters[i];
      font[static_cast<std::size_t>(c)] = g;
      if (c >= 'A' && c <= 'Z') font[static_cast<std::size_t>(c - 'A' + 'a')] = g;
    }
  }
  return font;
}

constexpr std::array<Glyph, 128> kFont = make_font();

}  // namespace

const Glyph& glyph(char c) {
  const auto code = static_cast<unsigned char>(c);
  return code < kFont.size() ? kFont[code] : kBox;
}

}  // namespace winnow::media
