#include "client/report/svg_chart.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "common/core/printable.h"

namespace cleave {
namespace {

// All lengths are quarters of a millimetre: the document is 88 mm wide, and its text 7.8 points
// high.
constexpr double kWidth = 352, kRight = 14, kTop = 6;
constexpr double kTextHeight = 11, kLineHeight = 15;
constexpr double kPlotHeight = 190;
constexpr double kPerMillimetre = 4;
constexpr std::size_t kMaxMarkers = 12;     // per line
constexpr std::size_t kMaxErrorBars = 25;   // per line; a line with more points has a band
constexpr std::size_t kMaxLegendText = 44;  // characters

// Okabe and Ito's palette, and what distinguishes the lines without colour.
constexpr std::array kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                 "#56b4e9", "#b07d00", "#505860"};
constexpr std::array kDashes = {"", "6 3", "2 2.5", "9 3 2 3"};
constexpr std::size_t kMarkers = 6;

// The fills of bars: from dark to light, with different hatches.
constexpr std::array kFills = {"#0072b2", "url(#stripes)", "url(#dots)", "#e3e6ea"};
constexpr const char* kHatches =
    "<defs><pattern id=\"stripes\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\" "
    "patternTransform=\"rotate(45)\"><rect width=\"4\" height=\"4\" fill=\"#fff\"/><rect "
    "width=\"2\" height=\"4\" fill=\"#d55e00\"/></pattern><pattern id=\"dots\" width=\"4\" "
    "height=\"4\" patternUnits=\"userSpaceOnUse\"><rect width=\"4\" height=\"4\" "
    "fill=\"#fff\"/><circle cx=\"2\" cy=\"2\" r=\"1.1\" fill=\"#009e73\"/></pattern></defs>\n";

std::string number(double value) {
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string xmlText(const std::string& text) {
  std::string safe;
  for (const char c : printable(text)) {  // XML has no control characters
    if (c == '&') {
      safe += "&amp;";
    } else if (c == '<') {
      safe += "&lt;";
    } else if (c == '>') {
      safe += "&gt;";
    } else {
      safe += c;
    }
  }
  return safe;
}

// Whether the byte begins a character of UTF-8.
bool isFirstByte(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

std::size_t charactersOf(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), isFirstByte));
}

std::string shortened(const std::string& text, std::size_t characters) {
  if (charactersOf(text) <= characters) return text;
  std::string kept;
  std::size_t count = 0;
  for (const char c : text) {
    if (isFirstByte(c) && ++count == characters) break;
    kept += c;
  }
  return kept + "…";
}

// An upper estimate: browsers and papers use different fonts.
double widthOf(const std::string& text) {
  constexpr double kCharacter = 0.56;
  return kCharacter * kTextHeight * static_cast<double>(charactersOf(text));
}

std::string textAt(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n", number(x), number(y),
                     anchor, xmlText(text));
}

std::string segment(double x1, double y1, double x2, double y2, const std::string& style) {
  return fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" {}/>\n", number(x1), number(y1),
                     number(x2), number(y2), style);
}

const char* const kGrid = "stroke=\"#dfe3e8\" stroke-width=\"0.7\"";
const char* const kFrame = "stroke=\"#000\" stroke-width=\"1\"";

std::string document(double height, const std::string& content) {
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
      "width=\"{}mm\" height=\"{}mm\" viewBox=\"0 0 {} {}\" font-family=\"Helvetica, Arial, "
      "'Liberation Sans', sans-serif\" font-size=\"{}\" fill=\"#000\">\n<rect width=\"{}\" "
      "height=\"{}\" fill=\"#fff\"/>\n{}</svg>\n",
      kSvgMark, number(kWidth / kPerMillimetre), number(height / kPerMillimetre), number(kWidth),
      number(height), number(kTextHeight), number(kWidth), number(height), content);
}

// ---- Axes ----

struct Tick {
  double value = 0;
  std::string text;
};

// An axis from the value `low` at the coordinate `begin` to `high` at `end`.
struct Axis {
  double low = 0, high = 1, begin = 0, end = 1;
  bool isLog = false;
  std::vector<Tick> ticks;

  double place(double value) const {
    const auto scaled = [&](double v) { return isLog ? std::log10(v) : v; };
    const double share = (scaled(value) - scaled(low)) / (scaled(high) - scaled(low));
    return begin + share * (end - begin);
  }
};

// The smallest of 1, 2, 5, 10, … times a power of ten with which `span` has at most `max` steps.
double stepOf(double span, int max) {
  const double power = std::pow(10.0, std::floor(std::log10(span / max)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power * max >= span * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

// Sets the ticks, and widens the axis to the ticks around it if `isWidened`.
void addTicks(Axis& axis, int max, bool isWidened) {
  const double step = stepOf(axis.high - axis.low, max);
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  if (isWidened) {
    axis.low = std::floor(axis.low / step + 1e-9) * step;
    axis.high = std::ceil(axis.high / step - 1e-9) * step;
  }
  for (double k = std::ceil(axis.low / step - 1e-9); k * step <= axis.high + 1e-9 * step; ++k) {
    const double value = k * step + 0.0;  // not -0
    axis.ticks.push_back({value, fmt::format("{:.{}f}", value, decimals)});
  }
}

void addLogTicks(Axis& axis) {
  constexpr double kMaxDecades = 3;  // with ticks between the powers of ten
  const double decades = std::log10(axis.high / axis.low);
  for (int power = static_cast<int>(std::floor(std::log10(axis.low)));
       power <= static_cast<int>(std::ceil(std::log10(axis.high))); ++power) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double value = factor * std::pow(10.0, power);
      if (value < axis.low || value > axis.high || (factor > 1 && decades > kMaxDecades)) continue;
      axis.ticks.push_back({value, fmt::format("{:.6g}", value)});
    }
  }
}

// ---- Legend ----

struct LegendEntry {
  std::string label;
  std::string sample;  // drawn in the area from (0, -8) to (kSample, 0)
};
constexpr double kSample = 26, kSampleGap = 5, kEntryGap = 12;

// Places the entries in rows from `top` on. Returns the drawing and sets `top` to its lower edge.
std::string legendOf(const std::vector<LegendEntry>& entries, double& top) {
  std::string drawing;
  double x = kRight;
  top += kLineHeight - 3;
  for (const LegendEntry& entry : entries) {
    const std::string label = shortened(entry.label, kMaxLegendText);
    const double width = kSample + kSampleGap + widthOf(label);
    if (x > kRight && x + width > kWidth - kRight) {
      x = kRight;
      top += kLineHeight;
    }
    drawing += fmt::format("<g transform=\"translate({} {})\">\n{}{}</g>\n", number(x), number(top),
                           entry.sample, textAt(kSample + kSampleGap, 0, "start", label));
    x += width + kEntryGap;
  }
  top += 8;
  return drawing;
}

// ---- Lines ----

std::string styleOf(std::size_t line) {
  const char* dash = kDashes[line % kDashes.size()];
  std::string style =
      fmt::format("stroke=\"{}\" stroke-width=\"1.5\"", kColours[line % kColours.size()]);
  if (*dash != '\0') style += fmt::format(" stroke-dasharray=\"{}\"", dash);
  return style;
}

std::string markerAt(double x, double y, std::size_t line) {
  const char* colour = kColours[line % kColours.size()];
  const char* fill = line % 2 == 0 ? colour : "#fff";
  const std::string style =
      fmt::format("fill=\"{}\" stroke=\"{}\" stroke-width=\"1.2\"", fill, colour);
  const auto shape = [&](const char* path) {
    return fmt::format("<path transform=\"translate({} {})\" d=\"{}\" {}/>\n", number(x), number(y),
                       path, style);
  };
  static constexpr std::array<const char*, kMarkers> kPaths = {
      "M-3.2 0A3.2 3.2 0 1 0 3.2 0A3.2 3.2 0 1 0 -3.2 0Z",
      "M-3 -3H3V3H-3Z",
      "M0 -3.8L3.5 2.6H-3.5Z",
      "M0 -4L4 0L0 4L-4 0Z",
      "M0 3.8L3.5 -2.6H-3.5Z",
      "M-1.2 -3.8H1.2V-1.2H3.8V1.2H1.2V3.8H-1.2V1.2H-3.8V-1.2H-1.2Z"};
  return shape(kPaths[line % kMarkers]);
}

std::string errorsOf(const ChartLine& line, std::size_t index, const Axis& x, const Axis& y) {
  const char* colour = kColours[index % kColours.size()];
  std::string drawing;
  if (line.points.size() > kMaxErrorBars) {
    std::string above, below;
    for (const ChartPoint& point : line.points) {
      const double deviation = point.stddev.value_or(0);
      above +=
          fmt::format("{},{} ", number(x.place(point.x)), number(y.place(point.y + deviation)));
      below.insert(
          0, fmt::format("{},{} ", number(x.place(point.x)), number(y.place(point.y - deviation))));
    }
    return fmt::format("<polygon points=\"{}{}\" fill=\"{}\" fill-opacity=\"0.2\"/>\n", above,
                       below, colour);
  }
  const std::string style = fmt::format("stroke=\"{}\" stroke-width=\"1\"", colour);
  constexpr double kCap = 2.5;
  for (const ChartPoint& point : line.points) {
    if (!point.stddev || *point.stddev <= 0) continue;
    const double at = x.place(point.x);
    const double high = y.place(point.y + *point.stddev), low = y.place(point.y - *point.stddev);
    drawing += segment(at, low, at, high, style) + segment(at - kCap, low, at + kCap, low, style) +
               segment(at - kCap, high, at + kCap, high, style);
  }
  return drawing;
}

std::string lineOf(const ChartLine& line, std::size_t index, const Axis& x, const Axis& y) {
  std::string paths, points, markers;
  std::size_t connected = 0;  // number of points in `points`
  const auto finishPath = [&] {
    if (connected > 1) {
      paths += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke-linejoin=\"round\" {}/>\n",
                           points, styleOf(index));
    }
    points.clear();
    connected = 0;
  };
  const std::size_t every = (line.points.size() + kMaxMarkers - 1) / kMaxMarkers;
  for (std::size_t p = 0; p < line.points.size(); ++p) {
    if (line.points[p].isApart) finishPath();
    const double atX = x.place(line.points[p].x), atY = y.place(line.points[p].y);
    points += fmt::format("{}{},{}", connected++ == 0 ? "" : " ", number(atX), number(atY));
    if (p % every == 0) markers += markerAt(atX, atY, index);
  }
  finishPath();
  return paths + markers;
}

// Vertical lines over the height of the plot.
std::string marksOf(const LineChart& chart, const Axis& x, double top, double bottom) {
  std::string drawing;
  for (const double mark : chart.marks) {
    const double at = x.place(mark);
    drawing += segment(at, top, at, bottom, "stroke=\"#505860\" stroke-width=\"0.8\"");
  }
  if (chart.marks.empty()) return drawing;
  const double first = x.place(chart.marks.front());
  const bool isLeft = first + 3 + widthOf(chart.markLabel) > x.end;
  return drawing + textAt(first + (isLeft ? -3 : 3), top + kTextHeight, isLeft ? "end" : "start",
                          chart.markLabel);
}

// The horizontal axis with its title, below the plot.
std::string horizontal(const Axis& x, double top, double bottom, const std::string& title) {
  std::string drawing;
  for (const Tick& tick : x.ticks) {
    const double at = x.place(tick.value);
    drawing += segment(at, top, at, bottom, kGrid) + segment(at, bottom, at, bottom + 3, kFrame);
    drawing += textAt(at, bottom + 4 + kTextHeight, "middle", tick.text);
  }
  return drawing + textAt((x.begin + x.end) / 2, bottom + 6 + 2.4 * kTextHeight, "middle", title);
}
constexpr double kBelow = 38;  // height of the horizontal axis

}  // namespace

std::string svgOf(const LineChart& chart) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Axis x{kInfinity, -kInfinity, 0, kWidth - kRight, chart.isLogX, {}};
  Axis y{chart.isFromZero ? 0 : kInfinity, -kInfinity, 0, 0, false, {}};
  std::vector<LegendEntry> legend;
  for (std::size_t index = 0; index < chart.lines.size(); ++index) {
    for (const ChartPoint& point : chart.lines[index].points) {
      const double deviation = point.stddev.value_or(0);
      x.low = std::min(x.low, point.x);
      x.high = std::max(x.high, point.x);
      y.low = std::min(y.low, point.y - deviation);
      y.high = std::max(y.high, point.y + deviation);
    }
    legend.push_back({chart.lines[index].label, segment(0, -4, kSample, -4, styleOf(index)) +
                                                    markerAt(kSample / 2, -4, index)});
  }
  if (y.high - y.low < 1e-9 * std::max(1.0, std::abs(y.high))) {
    const double around = y.high == 0 ? 1 : 0.05 * std::abs(y.high);
    y.low -= chart.isFromZero ? 0 : around;
    y.high += around;
  }
  constexpr int kMaxTicks = 6;
  addTicks(y, kMaxTicks, true);
  if (chart.isLogX) {
    x.low /= 1.2;
    x.high *= 1.2;
    addLogTicks(x);
  } else {
    x.low = 0;
    x.high = x.high > 0 ? 1.03 * x.high : 1;
    addTicks(x, kMaxTicks, false);
  }

  double top = kTop;
  std::string drawing = legend.size() > 1 ? legendOf(legend, top) : "";
  const double bottom = top + kPlotHeight;
  double labels = 0;
  for (const Tick& tick : y.ticks) labels = std::max(labels, widthOf(tick.text));
  x.begin = 2 * kTextHeight + labels;
  y.begin = bottom;
  y.end = top;
  drawing += horizontal(x, top, bottom, chart.xTitle);
  for (const Tick& tick : y.ticks) {
    const double at = y.place(tick.value);
    drawing +=
        segment(x.begin, at, x.end, at, kGrid) + segment(x.begin - 3, at, x.begin, at, kFrame);
    drawing += textAt(x.begin - 5, at + 0.36 * kTextHeight, "end", tick.text);
  }
  drawing += segment(x.begin, top, x.begin, bottom, kFrame) +
             segment(x.begin, bottom, x.end, bottom, kFrame);
  drawing += fmt::format(
      "<text transform=\"translate({} {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
      number(kTextHeight), number((top + bottom) / 2), xmlText(chart.yTitle));
  drawing += marksOf(chart, x, top, bottom);
  for (std::size_t index = 0; index < chart.lines.size(); ++index) {
    drawing += errorsOf(chart.lines[index], index, x, y) + lineOf(chart.lines[index], index, x, y);
  }
  return document(bottom + kBelow, drawing);
}

std::string svgOf(const BarChart& chart) {
  constexpr double kThin = 9, kThick = 14, kGap = 8;
  const double barHeight = chart.isStacked ? kThick : kThin;
  const double rowHeight =
      (chart.isStacked ? 1.0 : static_cast<double>(chart.parts.size())) * barHeight;
  Axis x{0, 0, 0, kWidth - kRight, false, {}};
  double labels = 0;
  constexpr std::size_t kMaxLabel = 24;  // characters
  for (std::size_t row = 0; row < chart.rows.size(); ++row) {
    double sum = 0;
    for (const BarPart& part : chart.parts) {
      const Spread& value = part.values[row];
      const double end = (chart.isStacked ? sum : 0) + value.mean;
      x.high = std::max(x.high, end + value.stddev.value_or(0));
      sum = end;
    }
    if (chart.isStacked) x.high = std::max(x.high, sum + chart.stddevs[row].value_or(0));
    labels = std::max(labels, widthOf(shortened(chart.rows[row], kMaxLabel)));
  }
  x.high = x.high > 0 ? 1.03 * x.high : 1;
  x.begin = labels + 14;
  constexpr int kMaxTicks = 5;
  addTicks(x, kMaxTicks, false);

  std::vector<LegendEntry> legend;
  const auto bar = [](double left, double top, double width, double height, std::size_t part) {
    return fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\" "
        "stroke=\"#000\" stroke-width=\"0.6\"/>\n",
        number(left), number(top), number(width), number(height), kFills[part % kFills.size()]);
  };
  for (std::size_t part = 0; part < chart.parts.size(); ++part) {
    legend.push_back({chart.parts[part].label, bar(0, -9, kSample, 9, part)});
  }
  double top = kTop;
  std::string drawing = kHatches + legendOf(legend, top);
  const double bottom =
      top + static_cast<double>(chart.rows.size()) * (rowHeight + kGap) + kGap / 2;
  drawing += horizontal(x, top, bottom, chart.xTitle);
  const auto errorBar = [&](double value, const std::optional<double>& stddev, double y) {
    if (!stddev || *stddev <= 0) return std::string();
    constexpr double kCap = 2.5;
    const double low = x.place(std::max(0.0, value - *stddev)), high = x.place(value + *stddev);
    return segment(low, y, high, y, kFrame) + segment(low, y - kCap, low, y + kCap, kFrame) +
           segment(high, y - kCap, high, y + kCap, kFrame);
  };
  double at = top + kGap / 2 + 2;
  for (std::size_t row = 0; row < chart.rows.size(); ++row, at += rowHeight + kGap) {
    drawing += textAt(x.begin - 6, at + rowHeight / 2 + 0.36 * kTextHeight, "end",
                      shortened(chart.rows[row], kMaxLabel));
    double sum = 0;
    for (std::size_t part = 0; part < chart.parts.size(); ++part) {
      const Spread& value = chart.parts[part].values[row];
      const double y = at + (chart.isStacked ? 0.0 : static_cast<double>(part) * barHeight);
      const double left = x.place(chart.isStacked ? sum : 0);
      const double end = (chart.isStacked ? sum : 0) + value.mean;
      drawing += bar(left, y, x.place(end) - left, barHeight, part);
      drawing += errorBar(end, value.stddev, y + barHeight / 2);
      sum = end;
    }
    if (chart.isStacked) drawing += errorBar(sum, chart.stddevs[row], at + barHeight / 2);
  }
  drawing += segment(x.begin, top, x.begin, bottom, kFrame) +
             segment(x.begin, bottom, x.end, bottom, kFrame);
  return document(bottom + kBelow, drawing);
}

}  // namespace cleave
