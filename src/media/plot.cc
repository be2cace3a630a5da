#include "media/plot.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <span>
#include <system_error>

#include "core/partial_file.h"
#include "media/child_program.h"
#include "winnow/error.h"

namespace winnow::media {

namespace {

constexpr const char* kOperation = "plot";
constexpr int kPanelWidth = 760;  // pixels
constexpr int kLegendWidth = 260;
constexpr int kHeight = 640;

// Okabe and Ito's colours, which colour-blind readers can tell apart, then darker ones of the same hues.
constexpr std::array<const char*, 14> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
                                                  "#8c564b", "#00395a", "#6b2f00", "#004f3a", "#7f3f63", "#8f8f00", "#7f7f7f"};
constexpr std::array<int, 7> kMarks = {7, 5, 9, 11, 13, 6, 4};  // filled circle, square, triangles, diamond; then open ones

// Single quotes: gnuplot expands nothing inside them.
std::string quoted(const std::string& text) {
  std::string out(1, '\'');
  for (const char c : text) out.append(c == '\'' ? 2 : 1, static_cast<unsigned char>(c) < 0x20U ? ' ' : c);
  return out.append(1, '\'');
}

std::string number(double value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

std::vector<std::string> series_names(const std::vector<PlotPanel>& panels) {
  std::vector<std::string> names;
  for (const PlotPanel& panel : panels) {
    for (const PlotSeries& series : panel.series) {
      if (std::find(names.begin(), names.end(), series.name) == names.end()) names.push_back(series.name);
    }
  }
  return names;
}

std::string style(std::size_t i) {
  return "lw 1.6 ps 1.3 pt " + std::to_string(kMarks[i % kMarks.size()]) + " lc rgb " + quoted(kColours[i % kColours.size()]);
}

bool is_drawable(const PlotPanel& panel, const std::array<double, 2>& point) {
  return std::isfinite(point[0]) && std::isfinite(point[1]) && (!panel.log_x || point[0] > 0.0) && (!panel.log_y || point[1] > 0.0);
}

// What the axes show.
struct Ranges {
  std::array<double, 2> x{}, y{};
  bool shows_floor = false;
};

// The points with a margin, and the floor if it is not so far away that the points would be squeezed together.
Ranges ranges_of(const PlotPanel& panel) {
  constexpr double kMargin = 0.08;
  constexpr double kFar = 0.5;
  std::array<std::vector<double>, 2> values;
  const std::array<bool, 2> log = {panel.log_x, panel.log_y};
  const auto axis = [&](std::size_t a, double value) { return log[a] ? std::log(value) : value; };
  for (const PlotSeries& series : panel.series) {
    for (const std::array<double, 2>& point : series.points) {
      if (!is_drawable(panel, point)) continue;
      for (std::size_t a = 0; a < 2; ++a) values[a].push_back(axis(a, point[a]));
    }
  }
  std::array<std::array<double, 2>, 2> ends{};
  for (std::size_t a = 0; a < 2 && !values[a].empty(); ++a) {
    const auto [low, high] = std::minmax_element(values[a].begin(), values[a].end());
    ends[a] = {*low, *high};
  }
  Ranges ranges;
  if (panel.floor && std::isfinite(*panel.floor) && (!panel.log_y || *panel.floor > 0.0)) {
    const double floor = axis(1, *panel.floor);
    const double span = ends[1][1] - ends[1][0];
    ranges.shows_floor = floor >= ends[1][0] - kFar * span && floor <= ends[1][1] + kFar * span;
    if (ranges.shows_floor) ends[1] = {std::min(ends[1][0], floor), std::max(ends[1][1], floor)};
  }
  for (std::size_t a = 0; a < 2; ++a) {
    const double margin = ends[a][1] > ends[a][0] ? kMargin * (ends[a][1] - ends[a][0]) : 0.5;
    (a == 0 ? ranges.x : ranges.y) = std::array{ends[a][0] - margin, ends[a][1] + margin};
  }
  if (panel.log_x) ranges.x = {std::exp(ranges.x[0]), std::exp(ranges.x[1])};
  if (panel.log_y) ranges.y = {std::exp(ranges.y[0]), std::exp(ranges.y[1])};
  return ranges;
}

std::string range_text(const char* axis, const std::array<double, 2>& range) {
  return std::string("set ").append(axis).append("range [").append(number(range[0])).append(":").append(number(range[1])).append("]\n");
}

// The panel's points as named data blocks; returns the plot command.
std::string plot_command(const PlotPanel& panel, std::size_t index, const std::vector<std::string>& names, const Ranges& ranges,
                         std::string& script) {
  std::string command;
  const auto add = [&](const std::string& part) { command += (command.empty() ? "plot " : ", \\\n  ") + part; };
  for (const PlotSeries& series : panel.series) {
    std::string points;
    for (const std::array<double, 2>& point : series.points) {
      if (is_drawable(panel, point)) points += number(point[0]) + " " + number(point[1]) + "\n";
    }
    if (points.empty()) continue;
    const auto i = static_cast<std::size_t>(std::find(names.begin(), names.end(), series.name) - names.begin());
    const std::string block = "$p" + std::to_string(index) + "_" + std::to_string(i);
    script += block + " << EOD\n" + points + "EOD\n";
    add(block + " using 1:2 with linespoints " + style(i) + " notitle");
  }
  if (panel.floor && std::isfinite(*panel.floor)) {
    std::array<char, 40> value{};
    std::snprintf(value.data(), value.size(), "%.3g", *panel.floor);
    const std::string name = panel.floor_name + ": " + value.data() + (ranges.shows_floor ? "" : ", off the scale");
    add((ranges.shows_floor ? number(*panel.floor) : "NaN") + " with lines dt 2 lw 1.5 lc rgb '#555555' title " + quoted(name));
  }
  return command.empty() ? "" : command + "\n";
}

void add_panel(const PlotPanel& panel, std::size_t index, std::size_t count, const std::vector<std::string>& names, std::string& script) {
  const double width = static_cast<double>(kPanelWidth) / static_cast<double>(kPanelWidth * static_cast<int>(count) + kLegendWidth);
  const Ranges ranges = ranges_of(panel);
  const std::string command = plot_command(panel, index, names, ranges, script);
  if (command.empty()) return;
  script += "set origin " + number(width * static_cast<double>(index)) + ",0\nset size " + number(width) + ",1\n";
  script += "unset logscale\n";
  if (panel.log_x) script += "set logscale x\n";
  if (panel.log_y) script += "set logscale y\n";
  script += range_text("x", ranges.x) + range_text("y", ranges.y);
  script += "set key top right noenhanced samplen 2\n";
  script += "set title " + quoted(panel.title) + "\nset xlabel " + quoted(panel.x_label) + "\nset ylabel " + quoted(panel.y_label) + "\n";
  script += command;
}

// An empty plot beside the panels, whose key is the legend of all.
void add_legend(std::size_t count, const std::vector<std::string>& names, std::string& script) {
  const double all = kPanelWidth * static_cast<double>(count) + kLegendWidth;
  script += "set origin " + number(1.0 - kLegendWidth / all) + ",0\nset size " + number(kLegendWidth / all) + ",1\n";
  script += "unset logscale\nunset title\nunset xlabel\nunset ylabel\nunset tics\nunset border\nunset grid\n";
  script += "set key at graph 0.0,0.98 left top Left reverse noenhanced spacing 1.3 samplen 2\nset xrange [0:1]\nset yrange [0:1]\n";
  for (std::size_t i = 0; i < names.size(); ++i) {
    script += (i == 0 ? "plot " : ", \\\n  ") + std::string("-1 with linespoints ") + style(i) + " title " + quoted(names[i]);
  }
  script += "\n";
}

}  // namespace

std::string find_gnuplot() {
  std::string program = find_program("gnuplot");
  if (!program.empty()) return program;
  throw Error(kOperation, "drawing the plot needs the program gnuplot in PATH, and there is none: install the package \"gnuplot-nox\"");
}

std::string plot_script(const std::string& path, const std::vector<PlotPanel>& panels) {
  const std::vector<std::string> names = series_names(panels);
  const int width = kPanelWidth * static_cast<int>(panels.size()) + kLegendWidth;
  std::string script = "set terminal pngcairo size " + std::to_string(width) + "," + std::to_string(kHeight) +
                       " noenhanced font 'DejaVu Sans,11' background rgb 'white'\n";
  script += "set output " + quoted(path) + "\nset multiplot\nset grid lc rgb '#dddddd' lt 1\nset border 3\nset tics nomirror\n";
  script += "set format '%g'\n";
  for (std::size_t i = 0; i < panels.size(); ++i) add_panel(panels[i], i, panels.size(), names, script);
  if (!names.empty()) add_legend(panels.size(), names, script);
  return script + "unset multiplot\nunset output\n";
}

void write_plot(const std::string& path, const std::vector<PlotPanel>& panels) {
  if (panels.empty()) throw Error(kOperation, path + ": nothing to draw");
  const std::string program = find_gnuplot();
  PartialFile file(kOperation, path);  // before the child, so that it outlives it
  const std::string script = plot_script(file.partial_path(), panels);
  ChildProgram gnuplot(kOperation, {program, "-"});
  gnuplot.write(std::as_bytes(std::span(script)));
  gnuplot.finish();
  std::error_code ignored;
  if (std::filesystem::file_size(file.partial_path(), ignored) == 0 || ignored) {
    throw Error(kOperation, path + ": gnuplot drew nothing: " + gnuplot.last_words());
  }
  file.commit();
}

}  // namespace winnow::media
