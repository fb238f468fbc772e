// The files of one side of a run, for the implementation of RunReader.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "client/report/run_reader.h"

namespace cleave {

inline constexpr double kMaxStepNumber = 1e9;

// Returns x if it is in [0, max), a valid position on a grid. Otherwise marks the row as garbled.
inline double placeOf(const CsvRow& row, std::size_t column, std::optional<double> x, double max) {
  if (x && *x >= 0 && *x < max) return *x;
  row.garble(column);
  return 0;
}

// The columns of steps.csv that are read on this side, and those of transfers.csv.
std::vector<std::string> stepColumnsToRead(bool isClient);
std::vector<std::string> transferColumnsToRead();

struct RunReader::Side {
  Side(const std::string& folder, bool isClient, BucketAxes& grids)
      : steps(folder, "steps", stepColumnsToRead(isClient)),
        transfers(folder, "transfers", transferColumnsToRead()),
        figures(grids) {}

  // The seconds since this side's first row. Times are relative because the clocks of two machines
  // may differ.
  double since(const CsvRow& row, std::size_t column) {
    const double time = row.time(column);
    if (!row.isGarbled() && begin == 0) begin = time;
    return placeOf(row, column, std::max(0.0, time - begin), BytesBySecond::kMaxSeconds);
  }

  CsvReader steps, transfers;
  SideFigures figures;
  Settings environment;  // of a server
  double begin = 0;
  // Of the client: the rows of steps.csv that have been read.
  double generation = 0;     // of the last one; 0: none has been read
  double last = 0;           // time of the last one
  double pausedAt = 0;       // time of the last one before the newest process
  bool isRestarted = false;  // a later handshake was read, but not yet the step to continue from
  bool isWarmUp = true;      // this process has not recorded a training step
};

}  // namespace cleave
