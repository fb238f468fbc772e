#include "client/sweep/published.h"

#include <filesystem>

#include "client/report/records/csv_reader.h"
#include "common/core/error.h"

namespace cleave {
namespace {

// Text columns that describe the row.
const std::vector<std::string> kTexts = {"id",         "source", "origin",
                                         "experiment", "codec",  "contradiction"};
// Text columns that must match a point's facts unless they are empty.
const std::vector<std::string> kKeys = {"data",       "model",      "start",
                                        "cuts",       "batch",      "micro_batches",
                                        "codec_cut0", "codec_cut1", "insert"};
const std::vector<std::string> kFigures = {"accuracy_percent",
                                           "accuracy_std",
                                           "matthews_percent",
                                           "matthews_std",
                                           "ratio",
                                           "average_mib_s",
                                           "peak_client_mib_s",
                                           "peak_server_mib_s",
                                           "computation_seconds",
                                           "step_seconds",
                                           "images_per_second",
                                           "speed_up",
                                           "accuracy_speed_up",
                                           "memory_client_mib",
                                           "memory_server_mib"};

constexpr double kMebibyte = 1048576;

// A figure that both the published source and a sweep have.
struct Comparable {
  const char* theirs;
  const char* theirStddev;  // column; null if there is none
  const char* ours;
  double scale;  // factor from our unit to theirs
  const char* quantity;
  const char* unit;
  const char* note;
};
constexpr Comparable kComparable[] = {
    {"accuracy_percent", "accuracy_std", "best_top1", 100, "best top-1", "%", ""},
    {"matthews_percent", "matthews_std", "best_matthews", 100, "best Matthews", "%", ""},
    {"ratio", nullptr, "ratio", 1, "ratio", "", ""},
    {"step_seconds", nullptr, "step_seconds", 1, "step", "s", ""},
    {"images_per_second", nullptr, "images_per_second", 1, "speed", "images/s", ""},
    {"average_mib_s", nullptr, "average_up", 1 / kMebibyte, "average up", "MiB/s",
     "theirs: per second of computing; ours: per second of the whole step"},
    {"peak_server_mib_s", nullptr, "tensor_peak_up", 1 / kMebibyte, "peak up", "MiB/s", ""},
};

std::vector<std::string> joined() {
  std::vector<std::string> columns = kTexts;
  columns.insert(columns.end(), kKeys.begin(), kKeys.end());
  columns.insert(columns.end(), kFigures.begin(), kFigures.end());
  return columns;
}

}  // namespace

std::vector<std::string> publishedColumns() { return joined(); }

std::vector<PublishedRow> readPublished(const std::string& path) {
  const std::filesystem::path file(path);
  if (file.extension() != ".csv") {
    throw UsageError("bad-figures", path + " is not a .csv file",
                     "give a .csv file as described in docs/sweep.md");
  }
  const std::string folder = file.parent_path().empty() ? "." : file.parent_path().string();
  CsvReader reader(folder, file.stem().string(), joined());
  std::vector<PublishedRow> rows;
  reader.read([&](const CsvRow& cells) {
    PublishedRow row;
    std::map<std::string, std::string> texts;
    std::size_t c = 0;
    for (const std::string& name : kTexts) texts[name] = cells.text(c++);
    for (const std::string& name : kKeys) {
      const std::string_view text = cells.text(c++);
      if (!text.empty()) row.keys[name] = text;
    }
    for (const std::string& name : kFigures) {
      if (const auto value = cells.number(c++)) row.figures[name] = *value;
    }
    row.id = texts["id"];
    row.source = texts["source"];
    row.contradiction = texts["contradiction"];
    if (!cells.isGarbled()) rows.push_back(std::move(row));
  });
  const std::vector<std::string> problems = reader.problems(false);
  if (!problems.empty()) {
    throw UsageError(
        "bad-figures", folder + "/" + problems.front(),
        "correct it, or name another file with --figures; docs/sweep.md has its columns");
  }
  return rows;
}

bool matches(const PublishedRow& row, const Facts& facts) {
  for (const char* needed : {"data", "model", "codec_cut0", "codec_cut1"}) {
    if (!row.keys.contains(needed)) return false;
  }
  // A row without an insert is of a run without one.
  const auto inserts = facts.find("insert");
  if (!row.keys.contains("insert") && inserts != facts.end() && !inserts->second.empty()) {
    return false;
  }
  for (const auto& [key, value] : row.keys) {
    const auto own = facts.find(key);
    if (own == facts.end() || own->second != value) return false;
  }
  return true;
}

std::vector<ComparedFigure> compareFigures(const std::vector<SeedGroup>& groups,
                                           const std::vector<PublishedRow>& rows) {
  std::vector<ComparedFigure> compared;
  for (const SeedGroup& group : groups) {
    if (group.members.empty()) continue;
    for (const PublishedRow& row : rows) {
      if (!matches(row, group.members.front()->facts)) continue;
      for (const Comparable& figure : kComparable) {
        const auto theirs = row.figures.find(figure.theirs);
        const auto ours = group.metrics.find(figure.ours);
        if (theirs == row.figures.end() || ours == group.metrics.end()) continue;
        ComparedFigure one{&group,         &row, figure.quantity, figure.unit, ours->second,
                           theirs->second, {},   figure.note};
        one.ours.mean *= figure.scale;
        if (one.ours.stddev) *one.ours.stddev *= figure.scale;
        if (figure.theirStddev != nullptr && row.figures.contains(figure.theirStddev)) {
          one.theirStddev = row.figures.at(figure.theirStddev);
        }
        compared.push_back(std::move(one));
      }
    }
  }
  return compared;
}

}  // namespace cleave
