// The table of metrics (`train.metrics`), which measure a model's quality. A metric is a function
// of sums over samples, so that batches can be added. To add one, add a row to scores.cpp, and its
// title to common/core/metric_titles.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/losses.h"

namespace cleave {

// Sums by name. Sums of counts are exact, so they do not depend on the order of micro-batches.
using MetricSums = std::map<std::string, double>;

// The sums that every run has: the losses, and the weights that they are divided by.
inline constexpr const char* kLossSum = "loss";
inline constexpr const char* kLossWeight = "loss_weight";

// A micro-batch as the metrics see it: without the ignored targets, outside of autograd. What a
// metric asks for is computed on the output's device, and only the result is copied to the CPU.
class ScoredRows {
 public:
  // `rows`: on the device. `target`: the same target on the CPU.
  ScoredRows(const LossRows& rows, const at::Tensor& target, TargetKind kind, const LossSpec& spec);

  const at::Tensor& target() const { return target_; }    // on the CPU
  std::int64_t width() const { return output_.size(1); }  // classes, or values per row
  const std::vector<std::int64_t>& ranks() const;         // ranksOf(); computed once
  at::Tensor predicted() const;  // the class with the highest output, per row, on the CPU
  at::Tensor output() const;     // all outputs, fp32, on the CPU

 private:
  at::Tensor counted(const at::Tensor& perRow) const;

  at::Tensor output_;        // of all rows, on the device
  at::Tensor deviceTarget_;  // of all rows
  at::Tensor target_;
  at::Tensor positions_;  // of the counted rows; undefined: all are
  mutable std::optional<std::vector<std::int64_t>> ranks_;
};

struct BatchMetricRow {
  std::string_view name;         // a column of the run's files: docs/metrics.md
  std::string_view description;  // one line
  // Whether the metric can be computed for targets of this kind.
  bool (*fits)(TargetKind kind);
  bool evaluationOnly;  // true if the number of its sums grows with the number of samples
  // Adds a micro-batch. Null: the value is computed from the loss.
  void (*add)(const ScoredRows& rows, TargetKind kind, MetricSums& sums);
  // Returns nullopt if no samples were counted.
  std::optional<double> (*value)(const MetricSums& sums);
};
std::span<const BatchMetricRow> batchMetricTable();
// Throws UsageError with the nearest known name.
const BatchMetricRow& findBatchMetric(std::string_view name);

// Whether the metric is 1 for every model with this number of classes, as top5 is for 3 classes. It
// is recorded, but not shown in text.
bool isTrivial(std::string_view metric, std::int64_t classes);

struct ScoreSpec {
  LossSpec loss;
  std::vector<std::string> metrics = {"top1", "top5"};

  bool operator==(const ScoreSpec&) const = default;
  // The loss, then the metrics: the columns of the run's files.
  std::vector<std::string> names() const;
  std::set<std::string> shares() const;  // those names whose MetricTitle::isShare is true
};
// Throws UsageError "bad-metric" if a metric is unknown or does not fit the loss.
void checkScores(const ScoreSpec& spec);

// Returns, per row, the number of classes whose output ranks above the target's: a tensor of i64 on
// the output's device. Among equal outputs, the lower class ranks first. A target whose output is
// NaN ranks last. `output`: [rows, classes]; `target`: [rows], on the same device; the rank of a
// target that is not a class has no meaning.
at::Tensor ranksOf(const at::Tensor& output, const at::Tensor& target);
// The same, by operators that every device has. On the CPU, ranksOf() is faster.
at::Tensor ranksByOperators(const at::Tensor& output, const at::Tensor& target);

}  // namespace cleave
