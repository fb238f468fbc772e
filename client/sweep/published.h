// Published figures of others, such as configs/experiments/reference.csv, and the groups of a sweep
// that they can be compared with.
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
  Facts keys;                             // only those that the source states
  std::map<std::string, double> figures;  // by column; the column's name includes the unit
  std::string contradiction;  // a conflicting statement in the source; "" if none is known
};

// Reads a CSV file with the columns of docs/sweep.md. Throws UsageError: the file is unreadable,
// lacks columns, or has invalid rows.
std::vector<PublishedRow> readPublished(const std::string& path);

// Whether the row is comparable with a point of these facts: it states data, model and codecs, and
// no key differs.
bool matches(const PublishedRow& row, const Facts& facts);

// A published figure and ours.
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
