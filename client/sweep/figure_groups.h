// The figures of a sweep: one group per combination of values, with its seeds and folds.
#pragma once

#include <string>
#include <vector>

#include "client/report/figures.h"

namespace cleave {

// Whether this is the folder of a sweep.
bool isSweep(const std::string& folder);

// The finished points that results.csv lists, in its order. Throws UsageError "no-run" if there are
// none, and "bad-sweep" if a point's result.json is damaged.
std::vector<FigureGroup> sweepFigureGroups(const std::string& folder);

}  // namespace cleave
