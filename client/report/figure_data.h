// What the figures for papers are drawn from: the runs of each group, and what their CSV files have
// in common.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/report/figures.h"
#include "client/report/records/learning_curve.h"
#include "client/report/records/run_totals.h"
#include "common/files/record.h"

namespace cleave {

// The parts of a step on each side, and the two bandwidths of a run.
struct RunMeans {
  // Seconds per step: of the client, then of each server. Empty without steps.
  std::vector<std::array<double, 4>> parts;
  std::array<double, kDirections> bandwidth{};  // of tensors, in bytes per second
};

// The time before a resume in which no process ran.
struct Pause {
  double begin = 0, end = 0;  // seconds
};

struct GroupData {
  const FigureGroup* group = nullptr;  // borrowed
  std::vector<LearningCurve> curves;
  std::vector<MeanCurvePoint> points;
  std::vector<RunMeans> runs;
  // Of the only run: bytes of tensors in each second, and its pauses.
  std::array<std::vector<double>, kDirections> bytesBySecond;
  std::vector<Pause> pauses;
};
GroupData readGroup(const FigureGroup& group);

// ---- The figures ----

// Of the main metric, if all runs have the same one, and of the loss.
std::vector<Figure> curveFigures(const std::vector<GroupData>& groups);
// The parts of a step. Nothing if no group has steps.
std::optional<Figure> stepFigure(const std::vector<GroupData>& groups);
// Nothing if no run has transferred anything.
std::optional<Figure> bandwidthFigure(const std::vector<GroupData>& groups);

// ---- Units ----

struct DisplayUnit {
  const char* name;
  double size;
};
inline constexpr std::array kByteUnits = {DisplayUnit{"GB", 1e9}, DisplayUnit{"MB", 1e6},
                                          DisplayUnit{"kB", 1e3}, DisplayUnit{"bytes", 1}};
inline constexpr std::array kClockUnits = {DisplayUnit{"h", 3600}, DisplayUnit{"min", 60},
                                           DisplayUnit{"s", 1}};
inline constexpr std::array kStepUnits = {DisplayUnit{"s", 1}, DisplayUnit{"ms", 1e-3},
                                          DisplayUnit{"µs", 1e-6}};
inline constexpr double kPercent = 100;

// The largest unit of which `max` has at least two.
template <typename Units>
DisplayUnit unitFor(double max, const Units& units) {
  for (const DisplayUnit& unit : units) {
    if (max >= 2 * unit.size) return unit;
  }
  return units.back();
}

// ---- CSV files ----

class CsvText {
 public:
  // Begins with the columns of the groups' values and the number of runs.
  CsvText(const std::vector<GroupData>& groups, const std::vector<std::string>& columns);
  void row(const GroupData& group, std::uint64_t runs, const std::vector<Cell>& more);
  std::string text() const { return text_; }

 private:
  std::string text_;
};

void addSpread(std::vector<Cell>& cells, const std::optional<Spread>& spread, double factor = 1);
// Each name is followed by NAME_std.
std::vector<std::string> withStd(const std::vector<std::string>& names);

}  // namespace cleave
