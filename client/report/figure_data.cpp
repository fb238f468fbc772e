#include "client/report/figure_data.h"

#include "client/report/records/headline.h"
#include "client/report/records/run_reader.h"

namespace cleave {

GroupData readGroup(const FigureGroup& group) {
  constexpr std::size_t kPoints = 1000;
  GroupData data;
  data.group = &group;
  for (const RunPlace& place : group.runs) {
    data.curves.push_back(readLearningCurve(place.folder));
    BucketAxes axes(kPoints);
    RunReader reader(place, axes);
    reader.read();
    std::vector<StepSplit*> sides = reader.serverSplits();
    sides.insert(sides.begin(), &reader.client().split);
    RunMeans means;
    for (const StepSplit* side : sides) {
      if (side->means[0].isEmpty()) break;
      auto& parts = means.parts.emplace_back();
      for (std::size_t part = 0; part < parts.size(); ++part)
        parts[part] = side->means[part].value();
    }
    const RunTotals totals = runTotals(reader);
    for (std::size_t d = 0; d < kDirections; ++d) {
      data.bytesBySecond[d] = reader.client().bytes[d].seconds();
      means.bandwidth[d] = totals.bandwidth(d).value_or(0);
    }
    for (const auto& one : reader.training().interruptions) {
      if (one.isResume) data.pauses.push_back({one.since, one.time});
    }
    data.runs.push_back(means);
  }
  std::vector<const LearningCurve*> curves;
  for (const LearningCurve& curve : data.curves) curves.push_back(&curve);
  data.points = meanCurve(curves);
  return data;
}

CsvText::CsvText(const std::vector<GroupData>& groups, const std::vector<std::string>& columns) {
  std::vector<Cell> header;
  for (const auto& [key, value] : groups.front().group->values) header.emplace_back(key);
  header.emplace_back("runs");
  for (const std::string& column : columns) header.emplace_back(column);
  text_ = formatLine(header);
}

void CsvText::row(const GroupData& group, std::uint64_t runs, const std::vector<Cell>& more) {
  std::vector<Cell> cells;
  for (const auto& [key, value] : group.group->values) cells.emplace_back(value);
  cells.emplace_back(runs);
  cells.insert(cells.end(), more.begin(), more.end());
  text_ += formatLine(cells);
}

void addSpread(std::vector<Cell>& cells, const std::optional<Spread>& spread, double factor) {
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

}  // namespace cleave
