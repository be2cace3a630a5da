// Charts as PNG, drawn by the gnuplot program.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace winnow::media {

struct PlotSeries {
  std::string name;                           // has one colour and mark in all panels
  std::vector<std::array<double, 2>> points;  // x, y; joined by a line in their order
};

struct PlotPanel {
  std::string title, x_label, y_label;
  bool log_x = false, log_y = false;
  std::optional<double> floor;  // a horizontal line
  std::string floor_name;
  std::vector<PlotSeries> series;
};

// Full path of the gnuplot program in PATH. Throws Error naming the package to install.
std::string find_gnuplot();

// The panels side by side, with one legend. Values that are not finite are left out. Throws Error; a failure leaves no file.
void write_plot(const std::string& path, const std::vector<PlotPanel>& panels);

// What gnuplot is told to write to `path`.
std::string plot_script(const std::string& path, const std::vector<PlotPanel>& panels);

}  // namespace winnow::media
