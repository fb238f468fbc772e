// The figures of the main metric and of the loss.
#include <algorithm>

#include "client/report/figure_data.h"
#include "client/report/svg_chart.h"
#include "common/core/metric_titles.h"

namespace cleave {
namespace {

// A figure that training and evaluation have: the loss, or the main metric.
struct Quantity {
  std::string name;   // in the files' columns
  std::string title;  // "Accuracy"
  std::string file;   // "accuracy"
  bool isShare = false;
  std::optional<Spread> MeanCurvePoint::*train = nullptr;
  std::optional<Spread> MeanCurvePoint::*eval = nullptr;

  double factor() const { return isShare ? kPercent : 1; }
  std::string column(const char* phase) const {
    return std::string(phase) + "_" + name + (isShare ? "_percent" : "");
  }
  std::string axisTitle(const char* of) const { return title + of + (isShare ? " (%)" : ""); }
};

// What is on the horizontal axis.
struct Progress {
  const char* file;   // "bytes"
  const char* title;  // without a unit
  std::vector<std::string> columns;
  std::vector<const Spread MeanCurvePoint::*> fields;  // of the columns; the last one is drawn
};

double maxOf(const std::vector<GroupData>& groups, const Spread MeanCurvePoint::*field) {
  double max = 0;
  for (const GroupData& group : groups) {
    for (const MeanCurvePoint& point : group.points) max = std::max(max, (point.*field).mean);
  }
  return max;
}

// The evaluations, by what had been spent. Nothing if there was no evaluation.
std::optional<Figure> curveFigure(const std::vector<GroupData>& groups, const Quantity& quantity,
                                  const Progress& progress, const DisplayUnit& unit) {
  std::vector<std::string> columns = withStd(progress.columns);
  const std::string value = quantity.column("eval");
  columns.insert(columns.begin(), "epoch");
  columns.insert(columns.end(), {value, value + "_std"});
  CsvText csv(groups, columns);
  const auto drawn = progress.fields.back();
  LineChart chart{std::string(progress.title) + " (" + unit.name + ")",
                  quantity.axisTitle(" of the evaluation"),
                  false,
                  false,
                  {}};
  double min = 0, max = 0;
  for (const GroupData& group : groups) {
    ChartLine line{group.group->label, {}};
    for (const MeanCurvePoint& point : group.points) {
      const std::optional<Spread>& eval = point.*quantity.eval;
      if (!eval) continue;
      const double x = (point.*drawn).mean;
      min = min == 0 ? x : std::min(min, x);
      max = std::max(max, x);
      const double factor = quantity.factor();
      line.points.push_back({x / unit.size, factor * eval->mean,
                             eval->stddev ? std::optional(factor * *eval->stddev) : std::nullopt});
      std::vector<Cell> cells = {point.epoch};
      for (const auto field : progress.fields) addSpread(cells, point.*field);
      addSpread(cells, eval, factor);
      csv.row(group, point.runs, cells);
    }
    if (!line.points.empty()) chart.lines.push_back(std::move(line));
  }
  if (chart.lines.empty()) return std::nullopt;
  // With codecs, the bytes of two groups can differ by a factor of 30.
  constexpr double kLogFrom = 20;
  chart.isLogX = min > 0 && max / min > kLogFrom;
  return Figure{quantity.file + "_" + progress.file, svgOf(chart), csv.text()};
}

// By epoch. With a single group, training and evaluation; otherwise the evaluations.
std::optional<Figure> epochFigure(const std::vector<GroupData>& groups, const Quantity& quantity) {
  const std::string train = quantity.column("train"), eval = quantity.column("eval");
  CsvText csv(groups, {"epoch", train, train + "_std", eval, eval + "_std"});
  const bool isSingle = groups.size() == 1;
  LineChart chart{
      "Epoch", quantity.axisTitle(isSingle ? "" : " of the evaluation"), false, false, {}};
  const double factor = quantity.factor();
  const auto lineOf = [&](const GroupData& group, const std::string& label,
                          std::optional<Spread> MeanCurvePoint::*field) {
    ChartLine line{label, {}};
    for (const MeanCurvePoint& point : group.points) {
      const std::optional<Spread>& value = point.*field;
      if (!value) continue;
      line.points.push_back(
          {static_cast<double>(point.epoch), factor * value->mean,
           value->stddev ? std::optional(factor * *value->stddev) : std::nullopt});
    }
    if (!line.points.empty()) chart.lines.push_back(std::move(line));
  };
  for (const GroupData& group : groups) {
    lineOf(group, isSingle ? "evaluation" : group.group->label, quantity.eval);
    if (isSingle) lineOf(group, "training", quantity.train);
    for (const MeanCurvePoint& point : group.points) {
      std::vector<Cell> cells = {point.epoch};
      addSpread(cells, point.*quantity.train, factor);
      addSpread(cells, point.*quantity.eval, factor);
      csv.row(group, point.runs, cells);
    }
  }
  if (chart.lines.empty()) return std::nullopt;
  return Figure{quantity.file + "_epochs", svgOf(chart), csv.text()};
}

// The main metric of all runs; empty if they have different ones or none.
std::string commonMetric(const std::vector<GroupData>& groups) {
  std::optional<std::string> metric;
  for (const GroupData& group : groups) {
    for (const LearningCurve& curve : group.curves) {
      if (curve.points.empty()) continue;
      if (metric.value_or(curve.metric) != curve.metric) return "";
      metric = curve.metric;
    }
  }
  return metric.value_or("");
}

}  // namespace

std::vector<Figure> curveFigures(const std::vector<GroupData>& data) {
  std::vector<Figure> figures;
  const auto add = [&](std::optional<Figure> figure) {
    if (figure) figures.push_back(std::move(*figure));
  };
  if (const std::string metric = commonMetric(data); !metric.empty()) {
    const MetricTitle title = metricTitle(metric);
    const Quantity quantity{metric,
                            title.title,
                            title.title == "Accuracy" ? "accuracy" : metric,
                            title.isShare,
                            &MeanCurvePoint::trainMetric,
                            &MeanCurvePoint::evalMetric};
    const Progress bytes{
        "bytes",
        "Transferred bytes, both directions",
        {"up_bytes", "down_bytes", "total_bytes"},
        {&MeanCurvePoint::bytesUp, &MeanCurvePoint::bytesDown, &MeanCurvePoint::bytes}};
    const Progress seconds{
        "seconds", "Time of training and evaluation", {"seconds"}, {&MeanCurvePoint::seconds}};
    add(curveFigure(data, quantity, bytes,
                    unitFor(maxOf(data, &MeanCurvePoint::bytes), kByteUnits)));
    add(curveFigure(data, quantity, seconds,
                    unitFor(maxOf(data, &MeanCurvePoint::seconds), kClockUnits)));
    add(epochFigure(data, quantity));
  }
  add(epochFigure(data, {"loss", "Loss", "loss", false, &MeanCurvePoint::trainLoss,
                         &MeanCurvePoint::evalLoss}));
  return figures;
}

}  // namespace cleave
