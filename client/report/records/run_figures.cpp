#include "client/report/records/run_figures.h"

#include <algorithm>

namespace cleave {

void StepSplit::add(double step, bool isWarmUp, double seconds, double computed, double coded,
                    double wired) {
  double left = std::max(0.0, seconds);
  std::size_t index = 0;
  const auto take = [&](Series& series, double part) {
    part = std::clamp(part, 0.0, left);
    left -= part;
    series.add(step, part);
    means[index++].add(part, isWarmUp);
  };
  take(compute, computed);
  take(codec, coded);
  take(wire, wired);
  take(waiting, left);
}

SideFigures::SideFigures(BucketAxes& axes)
    : split(axes.step),
      transferRate{Series(axes.time), Series(axes.time)},
      deliveryRate(axes.time),
      roundTrip(axes.time),
      retransmits(axes.time) {}

TrainingFigures::TrainingFigures(BucketAxes& axes)
    : seconds(axes.step),
      boundSeconds(axes.step),
      latency(axes.step),
      loss(axes.step),
      metric(axes.step),
      learningRate(axes.step),
      gradientNorm(axes.step),
      clock(axes.step) {}

}  // namespace cleave
