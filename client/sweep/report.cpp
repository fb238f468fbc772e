#include "client/sweep/report.h"

#include <algorithm>

#include "client/report/figure_data.h"
#include "client/report/report.h"
#include "common/core/metric_titles.h"
#include "common/core/units.h"
#include "common/files/environment.h"
#include "common/files/record.h"

namespace cleave {
namespace {

using Json = nlohmann::ordered_json;

Cell cellOf(const std::optional<double>& value) { return value ? Cell(*value) : Cell(); }

template <typename Value>
std::optional<Value> find(const std::map<std::string, Value>& values, std::string_view name) {
  const auto found = values.find(std::string(name));
  return found == values.end() ? std::nullopt : std::optional(found->second);
}

const char* statusText(PointResult::Status status) {
  switch (status) {
    case PointResult::Status::done:
      return "done";
    case PointResult::Status::failed:
      return "failed";
    case PointResult::Status::toDo:
      return "to do";
  }
  return "";
}

// Returns the keys of the grid that distinguish groups.
std::vector<std::string> groupKeys(const SweepReport& report) {
  std::vector<std::string> keys;
  for (const SweepAxis& axis : report.axes) {
    if (!isRepetition(axis.key)) keys.push_back(axis.key);
  }
  return keys;
}

void addValues(const SweepPoint& point, std::vector<Cell>& cells) {
  for (const auto& [key, value] : point.values) cells.emplace_back(value);
}

Json valuesJson(const SweepPoint& point) {
  Json values = Json::object();
  for (const auto& [key, value] : point.values) values[key] = value;
  return values;
}

// ---- Text ----

using Row = std::vector<std::string>;

// Pads each column to its widest cell. The first `left` columns are left-aligned, the others
// right-aligned.
std::string aligned(const std::vector<Row>& rows, std::size_t left) {
  // Width in terminal columns: continuation bytes of UTF-8 have no width.
  const auto width = [](const std::string& text) {
    return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    }));
  };
  std::vector<std::size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width(row[c]));
  }
  std::string text;
  for (const Row& row : rows) {
    std::string one;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string space(widths[c] - width(row[c]), ' ');
      one += (c == 0 ? "" : "  ") + (c < left ? row[c] + space : space + row[c]);
    }
    one.erase(one.find_last_not_of(' ') + 1);
    text += one + "\n";
  }
  return text;
}

std::string withSpread(const std::optional<Spread>& spread, double scale, int digits) {
  if (!spread) return "";
  return spreadText({scale * spread->mean,
                     spread->stddev ? std::optional(scale * *spread->stddev) : std::nullopt},
                    digits);
}

struct TableColumn {
  const char* title;
  const char* metric;
  double scale;
  int digits;
};
constexpr TableColumn kTableColumns[] = {
    {"top-1 %", "top1", 100, 2},
    {"metric", "metric", 1, 4},
    {"best", "best_metric", 1, 4},
    {"samples/s", "images_per_second", 1, 0},
    {"step ms", "step_seconds", 1e3, 1},
    {"x bound", "over_bound", 1, 2},
    {"ratio", "ratio", 1, 4},
    {"MB", "total_bytes", 1e-6, 1},
    {"up MB/s", "average_up", 1e-6, 1},
    {"peak", "peak_up", 1e-6, 1},
    {"down MB/s", "average_down", 1e-6, 1},
    {"peak", "peak_down", 1e-6, 1},
};

std::string groupTable(const SweepReport& report) {
  const std::vector<std::string> keys = groupKeys(report);
  const bool hasSeeds = keys.size() < report.axes.size();
  const bool hasSpeedUp = std::any_of(report.groups.begin(), report.groups.end(),
                                      [](const SeedGroup& group) { return group.speedUp; });
  std::vector<TableColumn> columns;
  for (const TableColumn& column : kTableColumns) {
    const bool isMetric = std::string_view(column.metric).find("metric") != std::string::npos;
    const bool isTop1 = std::string_view(column.metric) == "top1";
    const bool isThere =
        std::any_of(report.groups.begin(), report.groups.end(),
                    [&](const SeedGroup& group) { return group.metrics.contains(column.metric); });
    if (isThere || (!isMetric && !isTop1)) columns.push_back(column);
  }
  std::vector<Row> rows(1, keys);
  if (hasSeeds) rows[0].emplace_back("seeds");
  for (const TableColumn& column : columns) rows[0].emplace_back(column.title);
  if (hasSpeedUp) rows[0].emplace_back("speed-up");
  for (const SeedGroup& group : report.groups) {
    Row row;
    for (const auto& [key, value] : group.point.values) row.push_back(value);
    if (hasSeeds) row.push_back(std::to_string(group.members.size()));
    for (const TableColumn& column : columns) {
      row.push_back(withSpread(find(group.metrics, column.metric), column.scale, column.digits));
    }
    if (hasSpeedUp) row.push_back(withSpread(group.speedUp, 1, 2));
    rows.push_back(std::move(row));
  }
  return aligned(rows, keys.size());
}

std::string comparisonText(const SweepReport& report) {
  std::vector<Row> rows = {{"point", "published", "", "ours", "theirs"}};
  bool anyContradiction = false;
  for (const ComparedFigure& one : report.compared) {
    const bool contradicted = !one.row->contradiction.empty();
    anyContradiction = anyContradiction || contradicted;
    const Spread theirs{one.theirs, one.theirStddev};
    constexpr int kDigits = 3;
    rows.push_back({one.group->point.text(), one.row->id + (contradicted ? " [!]" : ""),
                    one.quantity + (one.unit.empty() ? "" : ", " + one.unit),
                    withSpread(one.ours, 1, kDigits), withSpread(theirs, 1, kDigits)});
  }
  std::string text = "\n" + aligned(rows, 3);
  if (anyContradiction) text += "[!] the source contradicts itself here; see comparison.csv\n";
  return text;
}

}  // namespace

std::string resultsCsv(const SweepReport& report) {
  std::vector<Cell> header = {"point", "status"};
  for (const SweepAxis& axis : report.axes) header.emplace_back(axis.key);
  for (const SweepMetric& metric : sweepMetrics()) header.emplace_back(std::string(metric.name));
  for (const char* name : {"bottleneck", "speed_up", "failure"}) header.emplace_back(name);
  std::string text = formatLine(header);
  for (const PointResult& result : report.results) {
    std::vector<Cell> cells = {result.point.name(), statusText(result.status)};
    addValues(result.point, cells);
    for (const SweepMetric& metric : sweepMetrics()) {
      cells.push_back(cellOf(find(result.measured.metrics, metric.name)));
    }
    cells.emplace_back(result.measured.bottleneck);
    cells.push_back(cellOf(result.speedUp));
    cells.emplace_back(result.failure);
    text += formatLine(cells);
  }
  return text;
}

std::string groupsCsv(const SweepReport& report) {
  std::vector<Cell> header;
  for (const std::string& key : groupKeys(report)) header.emplace_back(key);
  header.emplace_back("seeds");
  std::vector<std::string> means;
  for (const SweepMetric& metric : sweepMetrics()) means.emplace_back(metric.name);
  means.emplace_back("speed_up");
  for (const std::string& column : withStd(means)) header.emplace_back(column);
  std::string text = formatLine(header);
  for (const SeedGroup& group : report.groups) {
    std::vector<Cell> cells;
    addValues(group.point, cells);
    cells.emplace_back(static_cast<std::uint64_t>(group.members.size()));
    for (const SweepMetric& metric : sweepMetrics()) {
      addSpread(cells, find(group.metrics, metric.name));
    }
    addSpread(cells, group.speedUp);
    text += formatLine(cells);
  }
  return text;
}

std::string transferSizesCsv(const SweepReport& report) {
  std::vector<Cell> header = {"point"};
  for (const SweepAxis& axis : report.axes) header.emplace_back(axis.key);
  for (const char* name : {"flow", "transfers", "bytes", "bandwidth"}) header.emplace_back(name);
  std::string text = formatLine(header);
  for (const PointResult& result : report.results) {
    for (const SizeClass& one : result.measured.classes) {
      std::vector<Cell> cells = {result.point.name()};
      addValues(result.point, cells);
      cells.insert(cells.end(), {one.flow, one.transfers, one.bytes, one.bandwidth});
      text += formatLine(cells);
    }
  }
  return text;
}

std::string comparisonCsv(const SweepReport& report) {
  std::vector<Cell> header;
  for (const std::string& key : groupKeys(report)) header.emplace_back(key);
  for (const char* name : {"published", "source", "quantity", "unit", "ours", "ours_std", "theirs",
                           "theirs_std", "note", "contradiction"}) {
    header.emplace_back(name);
  }
  std::string text = formatLine(header);
  for (const ComparedFigure& one : report.compared) {
    std::vector<Cell> cells;
    addValues(one.group->point, cells);
    cells.insert(cells.end(), {one.row->id, one.row->source, one.quantity, one.unit, one.ours.mean,
                               cellOf(one.ours.stddev), one.theirs, cellOf(one.theirStddev),
                               one.note, one.row->contradiction});
    text += formatLine(cells);
  }
  return text;
}

std::string tableText(const SweepReport& report) {
  std::string text = groupTable(report);
  if (!report.compared.empty()) text += comparisonText(report);
  for (const PointResult& result : report.results) {
    if (result.status == PointResult::Status::failed) {
      text += "\nfailed: " + result.point.text() + ": " + result.failure + "\n";
    }
  }
  return text;
}

Json toJson(const SweepReport& report) {
  const auto spreadJson = [](const Spread& spread) {
    return Json{{"mean", spread.mean}, {"std", spread.stddev ? Json(*spread.stddev) : Json()}};
  };
  Json json = {{"axes", Json::array()},
               {"points", Json::array()},
               {"groups", Json::array()},
               {"comparison", Json::array()}};
  for (const SweepAxis& axis : report.axes) {
    json["axes"].push_back({{"key", axis.key}, {"values", axis.values}});
  }
  for (const PointResult& result : report.results) {
    Json point = {{"point", result.point.name()},
                  {"status", statusText(result.status)},
                  {"values", valuesJson(result.point)}};
    if (result.status == PointResult::Status::done) point.update(toJson(result.measured));
    if (result.speedUp) point["speed_up"] = *result.speedUp;
    if (!result.failure.empty()) point["failure"] = result.failure;
    json["points"].push_back(std::move(point));
  }
  for (const SeedGroup& group : report.groups) {
    Json one = {{"values", valuesJson(group.point)},
                {"seeds", group.members.size()},
                {"points", Json::array()},
                {"metrics", Json::object()}};
    for (const PointResult* member : group.members) {
      std::string repetition;
      for (const auto& [key, value] : member->point.values) {
        if (isRepetition(key)) repetition += (repetition.empty() ? "" : ", ") + value;
      }
      one["points"].push_back({{"name", member->point.name()}, {"repetition", repetition}});
      one["micro_batches"] = std::stoul(member->facts.at("micro_batches"));
    }
    for (const auto& [name, spread] : group.metrics) one["metrics"][name] = spreadJson(spread);
    if (const MetricTitle main = metricTitle(group.mainMetric); !main.name.empty()) {
      one["main_metric"] = {{"name", main.name}, {"title", main.title}, {"is_share", main.isShare}};
    }
    one["curve"] = Json::array();
    for (const MeanCurvePoint& point : group.curve) {
      Json epoch = {{"epoch", point.epoch},
                    {"runs", point.runs},
                    {"seconds", spreadJson(point.seconds)},
                    {"up_bytes", spreadJson(point.bytesUp)},
                    {"down_bytes", spreadJson(point.bytesDown)},
                    {"total_bytes", spreadJson(point.bytes)}};
      if (point.evalLoss) epoch["eval_loss"] = spreadJson(*point.evalLoss);
      if (point.evalMetric) epoch["eval_metric"] = spreadJson(*point.evalMetric);
      one["curve"].push_back(std::move(epoch));
    }
    if (group.speedUp) one["speed_up"] = spreadJson(*group.speedUp);
    json["groups"].push_back(std::move(one));
  }
  for (const ComparedFigure& one : report.compared) {
    Json figure = {{"values", valuesJson(one.group->point)},
                   {"published", one.row->id},
                   {"source", one.row->source},
                   {"quantity", one.quantity},
                   {"unit", one.unit},
                   {"ours", spreadJson(one.ours)},
                   {"theirs", spreadJson({one.theirs, one.theirStddev})}};
    if (!one.note.empty()) figure["note"] = one.note;
    if (!one.row->contradiction.empty()) figure["contradiction"] = one.row->contradiction;
    json["comparison"].push_back(std::move(figure));
  }
  return json;
}

std::string sweepPage(const SweepReport& report, const std::string& folder) {
  nlohmann::json sweep = toJson(report);
  sweep["folder"] = folder;
  sweep["software"] = softwareVersion();
  sweep["written"] = utcNow();
  return reportPage({{"sweep", std::move(sweep)}});
}

}  // namespace cleave
