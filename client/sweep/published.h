// Reads figures that others have published, such as configs/experiments/reference.csv, and finds
// the groups of a sweep that are comparable with them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/sweep/results.h"

namespace cleave {

struct PublishedRow {
  std::string id;
  std::string source;
  Facts keys;                             // the keys that the source states
  std::map<std::string, double> figures;  // by column name, which includes the unit
  std::string contradiction;              // a conflicting statement in the source; may be empty
};

// Reads a CSV file with the columns that docs/sweep.md lists. Throws UsageError if the file is
// unreadable, lacks columns or has invalid rows.
std::vector<PublishedRow> readPublished(const std::string& path);

// Whether the row is comparable with a point that has these facts. The row must state data, model
// and codecs, and none of its keys may differ. One without an insert matches no point with one.
bool matches(const PublishedRow& row, const Facts& facts);

// A published figure and the figure of a sweep.
struct ComparedFigure {
  const SeedGroup* group = nullptr;   // borrowed
  const PublishedRow* row = nullptr;  // borrowed
  std::string quantity;
  std::string unit;
  Spread ours;
  double theirs = 0;
  std::optional<double> theirStddev;
  std::string note;  // how the two definitions differ, if they do
};
std::vector<ComparedFigure> compareFigures(const std::vector<SeedGroup>& groups,
                                           const std::vector<PublishedRow>& rows);

// The required columns, in order.
std::vector<std::string> publishedColumns();

}  // namespace cleave
