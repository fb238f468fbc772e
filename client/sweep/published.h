// Figures that others have published, as configs/experiments/reference.csv has them, and which of
// a sweep's groups may stand beside them.
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
  Facts keys;                             // those that the source states
  std::map<std::string, double> figures;  // by column, which has the unit in its name
  std::string contradiction;              // with what else the source says; "" where none is known
};

// A CSV file with the columns of docs/sweep.md. Throws UsageError: it cannot be read, lacks
// columns, or has rows that do not fit.
std::vector<PublishedRow> readPublished(const std::string& path);

// Whether a row says what a point with these facts could repeat: it names data, model and codecs,
// and no key that differs.
bool matches(const PublishedRow& row, const Facts& facts);

// One figure beside ours.
struct ComparedFigure {
  const SeedGroup* group = nullptr;   // borrowed
  const PublishedRow* row = nullptr;  // borrowed
  std::string quantity;
  std::string unit;
  Spread ours;
  double theirs = 0;
  std::optional<double> theirDeviation;
  std::string note;  // where the two are not defined alike
};
std::vector<ComparedFigure> compareFigures(const std::vector<SeedGroup>& groups,
                                           const std::vector<PublishedRow>& rows);

// The columns of such a file, in order.
std::vector<std::string> publishedColumns();

}  // namespace cleave
