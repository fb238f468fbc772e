// The figures of a step's parts and of the bandwidths.
#include <algorithm>
#include <numeric>

#include "client/report/figure_data.h"
#include "client/report/svg_chart.h"

namespace cleave {
namespace {

constexpr std::array kParts = {"computing", "codec", "wire", "waiting"};
constexpr std::array kDirectionNames = {"up", "down"};

template <typename Get>
Spread spreadOver(const std::vector<RunMeans>& runs, const Get& get) {
  std::vector<double> values;
  for (const RunMeans& run : runs) values.push_back(get(run));
  return spreadOf(values);
}

// The number of sides whose steps are known in all runs of the group.
std::size_t sidesOf(const GroupData& group) {
  std::size_t sides = group.runs.front().parts.size();
  for (const RunMeans& run : group.runs) sides = std::min(sides, run.parts.size());
  return sides;
}

Spread scaled(const Spread& spread, double factor) {
  return {factor * spread.mean,
          spread.stddev ? std::optional(factor * *spread.stddev) : std::nullopt};
}

double stepSecondsOf(const RunMeans& run, std::size_t side) {
  return std::accumulate(run.parts[side].begin(), run.parts[side].end(), 0.0);
}

// Of a single run: the bandwidth over time, as means of spans of equal length. Spans in which no
// process ran are left out.
Figure bandwidthOverTime(const GroupData& group) {
  constexpr std::size_t kMaxPoints = 300;
  const auto& bytes = group.bytesBySecond;
  const std::size_t seconds = std::max(bytes[0].size(), bytes[1].size());
  const std::size_t width = std::max<std::size_t>(1, (seconds + kMaxPoints - 1) / kMaxPoints);
  double max = 0;
  LineChart chart{"Time (s)", "", false, true, {{"up", {}}, {"down", {}}}};
  CsvText csv({group}, {"seconds", "up_bytes_per_second", "down_bytes_per_second"});
  chart.markLabel = "resume";
  for (const Pause& pause : group.pauses) chart.marks.push_back(pause.end);
  double before = 0;  // middle of the span before
  for (std::size_t begin = 0; begin < seconds; begin += width) {
    const std::size_t end = std::min(begin + width, seconds);
    const auto from = static_cast<double>(begin), until = static_cast<double>(end);
    const bool isPaused =
        std::any_of(group.pauses.begin(), group.pauses.end(),
                    [&](const Pause& each) { return from >= each.begin && until <= each.end; });
    if (isPaused) continue;
    const double middle = (from + until) / 2;
    const bool isApart =
        std::any_of(group.pauses.begin(), group.pauses.end(),
                    [&](const Pause& each) { return before < each.end && each.end <= middle; });
    before = middle;
    std::vector<Cell> cells = {middle};
    for (std::size_t d = 0; d < kDirections; ++d) {
      double sum = 0;
      for (std::size_t s = begin; s < std::min(end, bytes[d].size()); ++s) sum += bytes[d][s];
      const double rate = sum / static_cast<double>(end - begin);
      chart.lines[d].points.push_back({middle, rate, std::nullopt, isApart});
      cells.emplace_back(rate);
      max = std::max(max, rate);
    }
    csv.row(group, 1, cells);
  }
  const DisplayUnit unit = unitFor(max, kByteUnits);
  chart.yTitle = std::string("Bandwidth of tensors (") + unit.name + "/s)";
  for (ChartLine& line : chart.lines) {
    for (ChartPoint& point : line.points) point.y /= unit.size;
  }
  return {"bandwidth", svgOf(chart), csv.text()};
}

// Of several runs: the mean bandwidths.
Figure bandwidthByGroup(const std::vector<GroupData>& groups) {
  CsvText csv(groups, withStd({"mean_up_bytes_per_second", "mean_down_bytes_per_second"}));
  BarChart chart{"", {}, false, {}, {}};
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
  chart.xTitle = std::string("Mean bandwidth of tensors (") + unit.name + "/s)";
  for (BarPart& part : chart.parts) {
    for (Spread& value : part.values) value = scaled(value, 1 / unit.size);
  }
  return {"bandwidth", svgOf(chart), csv.text()};
}

}  // namespace

std::optional<Figure> stepFigure(const std::vector<GroupData>& groups) {
  std::vector<std::string> columns;
  for (const char* part : kParts) columns.push_back(std::string(part) + "_seconds");
  columns.emplace_back("step_seconds");
  columns = withStd(columns);
  columns.insert(columns.begin(), "side");
  CsvText csv(groups, columns);
  BarChart chart{"", {}, true, {}, {}};
  double max = 0;
  for (const GroupData& group : groups) {
    for (const RunMeans& run : group.runs) {
      if (!run.parts.empty()) max = std::max(max, stepSecondsOf(run, 0));
    }
  }
  const DisplayUnit unit = unitFor(max, kStepUnits);
  chart.xTitle = std::string("Time of a step (") + unit.name + ")";
  for (const char* part : kParts) chart.parts.push_back({part, {}});
  for (const GroupData& group : groups) {
    const std::size_t sides = sidesOf(group);
    for (std::size_t side = 0; side < sides; ++side) {
      const std::string number = sides > 2 ? " " + std::to_string(side) : "";
      const std::string name = side == 0 ? "client" : "server" + number;
      chart.rows.push_back(groups.size() == 1 ? name : group.group->label + ", " + name);
      std::vector<Cell> cells = {name};
      const Spread whole =
          spreadOver(group.runs, [&](const RunMeans& run) { return stepSecondsOf(run, side); });
      chart.stddevs.push_back(scaled(whole, 1 / unit.size).stddev);
      for (std::size_t part = 0; part < kParts.size(); ++part) {
        const Spread spread =
            spreadOver(group.runs, [&](const RunMeans& run) { return run.parts[side][part]; });
        chart.parts[part].values.push_back({spread.mean / unit.size, std::nullopt});
        addSpread(cells, spread);
      }
      addSpread(cells, whole);
      csv.row(group, group.runs.size(), cells);
    }
  }
  if (chart.rows.empty()) return std::nullopt;
  return Figure{"step_time", svgOf(chart), csv.text()};
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

}  // namespace cleave
