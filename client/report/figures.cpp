#include "client/report/figures.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <optional>

#include "client/report/learning_curve.h"
#include "client/report/run_reader.h"
#include "client/report/svg_chart.h"
#include "common/core/durable.h"
#include "common/core/metric_titles.h"
#include "common/core/record.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

// ---- Units ----

struct DisplayUnit {
  const char* name;
  double size;
};
constexpr std::array kByteUnits = {DisplayUnit{"GB", 1e9}, DisplayUnit{"MB", 1e6},
                                   DisplayUnit{"kB", 1e3}, DisplayUnit{"bytes", 1}};
constexpr std::array kClockUnits = {DisplayUnit{"h", 3600}, DisplayUnit{"min", 60},
                                    DisplayUnit{"s", 1}};
constexpr std::array kStepUnits = {DisplayUnit{"s", 1}, DisplayUnit{"ms", 1e-3},
                                   DisplayUnit{"µs", 1e-6}};
constexpr double kPercent = 100;

// The largest unit of which `max` has at least two.
template <typename Units>
DisplayUnit unitFor(double max, const Units& units) {
  for (const DisplayUnit& unit : units) {
    if (max >= 2 * unit.size) return unit;
  }
  return units.back();
}

// ---- Reading ----

// The parts of a step on one side, and the two bandwidths of a run.
struct RunMeans {
  std::array<std::array<double, 4>, 2> parts{};  // client, server; seconds per step
  double stepSeconds = 0;
  std::array<double, kDirections> bandwidth{};  // bytes per second
  bool hasSteps = false, hasServer = false;
};

constexpr std::array kParts = {"computing", "codec", "wire", "waiting"};
constexpr std::array kSides = {"client", "server"};
constexpr std::array kDirectionNames = {"up", "down"};

double meanOf(Series& series) {
  double sum = 0;
  for (const Series::Bucket& bucket : series.buckets()) sum += bucket.sum;
  return series.values() == 0 ? 0 : sum / static_cast<double>(series.values());
}

std::array<double, 4> meansOf(StepSplit& split) {
  return {meanOf(split.compute), meanOf(split.codec), meanOf(split.wire), meanOf(split.waiting)};
}

struct GroupData {
  const FigureGroup* group = nullptr;
  std::vector<LearningCurve> curves;
  std::vector<MeanCurvePoint> points;
  std::vector<RunMeans> runs;
  std::array<std::vector<double>, kDirections> bytesBySecond;  // of the only run
};

GroupData readGroup(const FigureGroup& group) {
  constexpr std::size_t kPoints = 1000;
  GroupData data;
  data.group = &group;
  for (const RunPlace& place : group.runs) {
    data.curves.push_back(readLearningCurve(place.folder));
    BucketAxes axes(kPoints);
    RunReader reader(place, axes);
    reader.read();
    RunMeans means;
    means.hasSteps = reader.client().split.compute.values() > 0;
    means.hasServer = reader.serverSplit().compute.values() > 0;
    means.stepSeconds = meanOf(reader.training().seconds);
    means.parts = {meansOf(reader.client().split), meansOf(reader.serverSplit())};
    for (std::size_t d = 0; d < kDirections; ++d) {
      data.bytesBySecond[d] = reader.client().bytes[d].seconds();
      double bytes = 0;
      for (const double second : data.bytesBySecond[d]) bytes += second;
      if (reader.training().lastTime > 0) means.bandwidth[d] = bytes / reader.training().lastTime;
    }
    data.runs.push_back(means);
  }
  std::vector<const LearningCurve*> curves;
  for (const LearningCurve& curve : data.curves) curves.push_back(&curve);
  data.points = meanCurve(curves);
  return data;
}

// ---- CSV ----

class CsvText {
 public:
  // Begins with the columns of the groups' values and the number of runs.
  CsvText(const std::vector<GroupData>& groups, const std::vector<std::string>& columns) {
    std::vector<Cell> header;
    for (const auto& [key, value] : groups.front().group->values) header.emplace_back(key);
    header.emplace_back("runs");
    for (const std::string& column : columns) header.emplace_back(column);
    text_ = formatLine(header);
  }
  void row(const GroupData& group, std::uint64_t runs, const std::vector<Cell>& more) {
    std::vector<Cell> cells;
    for (const auto& [key, value] : group.group->values) cells.emplace_back(value);
    cells.emplace_back(runs);
    cells.insert(cells.end(), more.begin(), more.end());
    text_ += formatLine(cells);
  }
  std::string text() const { return text_; }

 private:
  std::string text_;
};

void addSpread(std::vector<Cell>& cells, const std::optional<Spread>& spread, double factor = 1) {
  cells.push_back(spread ? Cell(factor * spread->mean) : Cell());
  cells.push_back(spread && spread->stddev ? Cell(factor * *spread->stddev) : Cell());
}

std::vector<std::string> withStd(const std::vector<std::string>& names) {
  std::vector<std::string> columns;
  for (const std::string& name : names) {
    columns.push_back(name);
    columns.push_back(name + "_std");
  }
  return columns;
}

// ---- Curves ----

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

// ---- Bars ----

template <typename Get>
Spread spreadOver(const std::vector<RunMeans>& runs, const Get& get) {
  std::vector<double> values;
  for (const RunMeans& run : runs) values.push_back(get(run));
  return spreadOf(values);
}

Spread scaled(const Spread& spread, double factor) {
  return {factor * spread.mean,
          spread.stddev ? std::optional(factor * *spread.stddev) : std::nullopt};
}

std::optional<Figure> stepFigure(const std::vector<GroupData>& groups) {
  std::vector<std::string> columns;
  for (const char* part : kParts) columns.push_back(std::string(part) + "_seconds");
  columns.emplace_back("step_seconds");
  columns = withStd(columns);
  columns.insert(columns.begin(), "side");
  CsvText csv(groups, columns);
  BarChart chart{"", {}, true, {}};
  double max = 0;
  for (const GroupData& group : groups) {
    max =
        std::max(max, spreadOver(group.runs, [](const RunMeans& r) { return r.stepSeconds; }).mean);
  }
  const DisplayUnit unit = unitFor(max, kStepUnits);
  chart.xTitle = std::string("Time of a step (") + unit.name + ")";
  for (const char* part : kParts) chart.parts.push_back({part, {}});
  for (const GroupData& group : groups) {
    for (std::size_t side = 0; side < kSides.size(); ++side) {
      const auto isKnown = [&](const RunMeans& run) {
        return side == 0 ? run.hasSteps : run.hasServer;
      };
      if (!std::all_of(group.runs.begin(), group.runs.end(), isKnown)) continue;
      const std::string name = kSides[side];
      chart.rows.push_back(groups.size() == 1 ? name : group.group->label + ", " + name);
      std::vector<Cell> cells = {name};
      for (std::size_t part = 0; part < kParts.size(); ++part) {
        const Spread spread =
            spreadOver(group.runs, [&](const RunMeans& run) { return run.parts[side][part]; });
        chart.parts[part].values.push_back({spread.mean / unit.size, std::nullopt});
        addSpread(cells, spread);
      }
      addSpread(cells, spreadOver(group.runs, [](const RunMeans& r) { return r.stepSeconds; }));
      csv.row(group, group.runs.size(), cells);
    }
  }
  if (chart.rows.empty()) return std::nullopt;
  return Figure{"step_time", svgOf(chart), csv.text()};
}

// Of a single run: the bandwidth over time, as means of spans of equal length.
Figure bandwidthOverTime(const GroupData& group) {
  constexpr std::size_t kMaxPoints = 300;
  const auto& bytes = group.bytesBySecond;
  const std::size_t seconds = std::max(bytes[0].size(), bytes[1].size());
  const std::size_t width = std::max<std::size_t>(1, (seconds + kMaxPoints - 1) / kMaxPoints);
  double max = 0;
  LineChart chart{"Time (s)", "", false, true, {{"up", {}}, {"down", {}}}};
  CsvText csv({group}, {"seconds", "up_bytes_per_second", "down_bytes_per_second"});
  for (std::size_t begin = 0; begin < seconds; begin += width) {
    const std::size_t end = std::min(begin + width, seconds);
    const double middle = static_cast<double>(begin + end) / 2;
    std::vector<Cell> cells = {middle};
    for (std::size_t d = 0; d < kDirections; ++d) {
      double sum = 0;
      for (std::size_t s = begin; s < std::min(end, bytes[d].size()); ++s) sum += bytes[d][s];
      const double rate = sum / static_cast<double>(end - begin);
      chart.lines[d].points.push_back({middle, rate, std::nullopt});
      cells.emplace_back(rate);
      max = std::max(max, rate);
    }
    csv.row(group, 1, cells);
  }
  const DisplayUnit unit = unitFor(max, kByteUnits);
  chart.yTitle = std::string("Bandwidth (") + unit.name + "/s)";
  for (ChartLine& line : chart.lines) {
    for (ChartPoint& point : line.points) point.y /= unit.size;
  }
  return {"bandwidth", svgOf(chart), csv.text()};
}

// Of several runs: the mean bandwidths.
Figure bandwidthByGroup(const std::vector<GroupData>& groups) {
  CsvText csv(groups, withStd({"mean_up_bytes_per_second", "mean_down_bytes_per_second"}));
  BarChart chart{"", {}, false, {}};
  double max = 0;
  for (const char* direction : kDirectionNames) chart.parts.push_back({direction, {}});
  for (const GroupData& group : groups) {
    chart.rows.push_back(group.group->label);
    std::vector<Cell> cells;
    for (std::size_t d = 0; d < kDirections; ++d) {
      const Spread spread =
          spreadOver(group.runs, [&](const RunMeans& run) { return run.bandwidth[d]; });
      chart.parts[d].values.push_back(spread);
      addSpread(cells, spread);
      max = std::max(max, spread.mean);
    }
    csv.row(group, group.runs.size(), cells);
  }
  const DisplayUnit unit = unitFor(max, kByteUnits);
  chart.xTitle = std::string("Mean bandwidth (") + unit.name + "/s)";
  for (BarPart& part : chart.parts) {
    for (Spread& value : part.values) value = scaled(value, 1 / unit.size);
  }
  return {"bandwidth", svgOf(chart), csv.text()};
}

std::optional<Figure> bandwidthFigure(const std::vector<GroupData>& groups) {
  bool any = false;
  for (const GroupData& group : groups) {
    for (const RunMeans& run : group.runs) any = any || run.bandwidth[0] + run.bandwidth[1] > 0;
  }
  if (!any) return std::nullopt;
  return groups.size() == 1 && groups.front().runs.size() == 1 ? bandwidthOverTime(groups.front())
                                                               : bandwidthByGroup(groups);
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

// ---- Files ----

bool isOwn(const fs::path& svg) {
  std::ifstream file(svg);
  std::string declaration, mark;
  return std::getline(file, declaration) && std::getline(file, mark) && mark == kSvgMark;
}

fs::path csvOf(fs::path svg) { return svg.replace_extension(".csv"); }

}  // namespace

std::vector<Figure> makeFigures(const std::vector<FigureGroup>& groups) {
  std::vector<GroupData> data;
  for (const FigureGroup& group : groups) data.push_back(readGroup(group));
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
  add(stepFigure(data));
  add(bandwidthFigure(data));
  return figures;
}

std::vector<std::string> writeFigures(const std::string& folder,
                                      const std::vector<Figure>& figures) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throwCannotWrite(folder, "cannot be created", error.value());
  for (const Figure& figure : figures) {
    const fs::path svg = fs::path(folder) / (figure.name + ".svg");
    const bool hasSvg = fs::exists(svg, error);
    if ((hasSvg && isOwn(svg)) || (!hasSvg && !fs::exists(csvOf(svg), error))) continue;
    throw UsageError("not-a-figure",
                     (hasSvg ? svg : csvOf(svg)).string() + " was not written by --figures",
                     "give another folder with --figures, or remove this file");
  }
  std::vector<std::string> files;
  for (const Figure& figure : figures) {
    const fs::path svg = fs::path(folder) / (figure.name + ".svg");
    // The CSV file belongs to a figure only if there is an SVG file, so it is written last.
    writeFileDurably(svg.string(), figure.svg);
    writeFileDurably(csvOf(svg).string(), figure.csv);
    files.insert(files.end(), {svg.string(), csvOf(svg).string()});
  }
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const fs::path& path = entry.path();
    const auto isFile = [&](const std::string& file) { return file == path.string(); };
    if (path.extension() != ".svg" || !isOwn(path)) continue;
    if (std::any_of(files.begin(), files.end(), isFile)) continue;
    fs::remove(csvOf(path), error);
    fs::remove(path, error);
  }
  return files;
}

}  // namespace cleave
