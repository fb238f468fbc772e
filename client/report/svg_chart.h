// Draws charts for papers as SVG documents of one column's width: text stays text, lines differ in
// markers and dashes and bars in hatches, so that a print in black and white is readable. The same
// chart always gives the same bytes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/report/records/spread.h"

namespace cleave {

// The first line of a document that svgOf() returns, after the XML declaration.
inline constexpr const char* kSvgMark = "<!-- Drawn by cleave-client report -->";

struct ChartPoint {
  double x = 0, y = 0;
  std::optional<double> stddev;  // of y
  bool isApart = false;          // not connected with the point before it
};
struct ChartLine {
  std::string label;
  std::vector<ChartPoint> points;  // in the order in which they are connected
};
struct LineChart {
  std::string xTitle, yTitle;  // with units
  bool isLogX = false;         // requires x > 0
  bool isFromZero = false;     // whether the vertical axis begins at 0
  std::vector<ChartLine> lines;
  std::vector<double> marks = {};  // x of vertical lines
  std::string markLabel = {};      // beside the first of them
};
// Requires a point. If several lines have points, the chart has a legend.
std::string svgOf(const LineChart& chart);

struct BarPart {
  std::string label;
  std::vector<Spread> values;  // at least 0, one per row; in a stacked row, without std
};
// Horizontal bars, because the labels of rows can be long.
struct BarChart {
  std::string xTitle;             // with the unit
  std::vector<std::string> rows;  // labels, from top to bottom
  bool isStacked = false;         // otherwise each part has its own bar
  std::vector<BarPart> parts;
  std::vector<std::optional<double>> stddevs;  // of stacked rows: std of the whole row
};
std::string svgOf(const BarChart& chart);

}  // namespace cleave
