// Figures for papers: SVG charts of runs, and the CSV file behind each. docs/report.md lists them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "client/report/records/run_place.h"

namespace cleave {

// Runs that differ only in their seed or fold: one line of each figure, with mean and std.
struct FigureGroup {
  std::string label;                                        // in legends
  std::vector<std::pair<std::string, std::string>> values;  // first columns of the CSV files
  std::vector<RunPlace> runs;                               // at least one
};

struct Figure {
  std::string name;  // of its two files, without extension
  std::string svg, csv;
};

// The figures for which the runs have data. All groups must have the same names in `values`.
// Figures of the main metric are left out if the runs have different ones.
std::vector<Figure> makeFigures(const std::vector<FigureGroup>& groups);

// Writes the figures into `folder`, which it creates, and removes those that an earlier call wrote
// and this one does not. Returns the paths of the files. Throws UsageError "not-a-figure", before
// any change, if a file with a figure's name is not one that this function has written, and
// RunError "cannot-write".
std::vector<std::string> writeFigures(const std::string& folder,
                                      const std::vector<Figure>& figures);

}  // namespace cleave
