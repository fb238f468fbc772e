#include "client/report/run_figures.h"

#include <algorithm>

namespace cleave {

void StepSplit::add(double step, double seconds, double computed, double coded, double wired) {
  double left = std::max(0.0, seconds);
  const auto take = [&](Series& series, double part) {
    part = std::clamp(part, 0.0, left);
    left -= part;
    series.add(step, part);
  };
  take(compute, computed);
  take(codec, coded);
  take(wire, wired);
  waiting.add(step, left);
}

SideFigures::SideFigures(BucketAxes& grids)
    : split(grids.step),
      transferRate{Series(grids.time), Series(grids.time)},
      deliveryRate(grids.time),
      roundTrip(grids.time),
      retransmits(grids.time) {}

TrainingFigures::TrainingFigures(BucketAxes& grids)
    : seconds(grids.step),
      boundSeconds(grids.step),
      overBound(grids.step),
      latency(grids.step),
      loss(grids.step),
      top1(grids.step),
      clock(grids.step) {}

}  // namespace cleave
