#include "report/markdown.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <sstream>

namespace winnow::report {

std::string fixed(std::optional<double> value, int digits) {
  if (!value || !std::isfinite(*value)) return "";
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, *value);
  return text.data();
}

namespace {

// As it reads in a table's cell: a bar would begin the next one, a line break end the table.
std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20U ? ' ' : c;
  }
  return out;
}

Cells escaped(const Cells& cells) {
  Cells out;
  std::transform(cells.begin(), cells.end(), std::back_inserter(out), cell);
  return out;
}

std::string padded_table(const Cells& header, const std::vector<Cells>& rows) {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < header.size(); ++c) {
    std::size_t width = std::max<std::size_t>(header[c].size(), 3);
    for (const Cells& row : rows) width = std::max(width, row[c].size());
    widths.push_back(width);
  }
  const auto line = [&](const Cells& cells, char fill) {
    std::string text = "|";
    for (std::size_t c = 0; c < cells.size(); ++c) {
      text += std::string(1, fill) + cells[c] + std::string(widths[c] - cells[c].size(), fill) + fill + "|";
    }
    return text + "\n";
  };
  std::string text = line(header, ' ') + line(Cells(header.size()), '-');
  for (const Cells& row : rows) text += line(row, ' ');
  return text;
}

}  // namespace

std::string table(const Cells& header, const std::vector<Cells>& rows) {
  std::vector<Cells> cells;
  std::transform(rows.begin(), rows.end(), std::back_inserter(cells), escaped);
  return padded_table(escaped(header), cells);
}

std::string block(const std::string& name, const std::string& body) {
  return "<!-- compare:" + name + " -->\n" + body + "<!-- /compare:" + name + " -->\n";
}

std::string without_marks(const std::string& text) {
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("<!--")) out += line + "\n";
  }
  return out;
}

}  // namespace winnow::report
