// A run's progress by epoch: what had been spent, and what the training and the evaluation gave.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/report/records/spread.h"

namespace cleave {

struct CurvePoint {
  std::uint64_t epoch = 0;
  double seconds = 0;  // of training and evaluation so far, without pauses between processes
  // So far, of steps.csv: tensors and control frames, including those of steps that were redone.
  double bytesUp = 0, bytesDown = 0;
  std::optional<double> trainLoss, trainMetric, evalLoss, evalMetric;

  double bytes() const { return bytesUp + bytesDown; }
};

struct LearningCurve {
  std::string metric;              // the main metric, as in train.metrics; empty if there is none
  std::vector<CurvePoint> points;  // by epoch
};

// Reads epochs.csv and steps.csv of a client's folder. Without them the curve is empty.
LearningCurve readLearningCurve(const std::string& folder);

// The figures of an epoch, over several runs. A figure that no run has is empty.
struct MeanCurvePoint {
  std::uint64_t epoch = 0;
  std::uint64_t runs = 0;  // that finished this epoch
  Spread seconds, bytesUp, bytesDown, bytes;
  std::optional<Spread> trainLoss, trainMetric, evalLoss, evalMetric;
};
std::vector<MeanCurvePoint> meanCurve(const std::vector<const LearningCurve*>& curves);

}  // namespace cleave
