// Tables in Markdown.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace winnow::report {

using Cells = std::vector<std::string>;

// "0.71", or nothing for what is unset or not finite.
std::string fixed(std::optional<double> value, int digits);
// Columns padded, so that the text is a table for eyes too. Bars in cells are escaped, control characters become spaces.
std::string table(const Cells& header, const std::vector<Cells>& rows);
// Between the marks that tools/splice_tables.py looks for.
std::string block(const std::string& name, const std::string& body);
// The same text without such marks, for people.
std::string without_marks(const std::string& text);

}  // namespace winnow::report
