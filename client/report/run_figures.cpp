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

SideFigures::SideFigures(BucketAxes& axes)
    : split(axes.step),
      transferRate{Series(axes.time), Series(axes.time)},
      deliveryRate(axes.time),
      roundTrip(axes.time),
      retransmits(axes.time) {}

TrainingFigures::TrainingFigures(BucketAxes& axes)
    : seconds(axes.step),
      boundSeconds(axes.step),
      overBound(axes.step),
      latency(axes.step),
      loss(axes.step),
      metric(axes.step),
      clock(axes.step) {}

ShownMetric shownMetric(const std::string& name) {
  const ShownMetric kKnown[] = {{"top1", "Accuracy"},
                                {"top5", "Accuracy, top-5"},
                                {"accuracy", "Accuracy"},
                                {"f1", "F1"},
                                {"auroc", "AUROC"},
                                {"matthews", "Matthews correlation", false},
                                {"perplexity", "Perplexity", false, false},
                                {"rmse", "Root mean squared error", false, false}};
  for (const ShownMetric& known : kKnown) {
    if (known.name == name) return known;
  }
  return {name, name, false, true};
}

}  // namespace cleave
