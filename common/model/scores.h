// The tables of losses and metrics: what the tail computes from logits and labels. To add one, add
// a row to scores.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace cleave {

struct LossRow {
  std::string_view name;         // "cross_entropy"
  std::string_view description;  // one line
  // The sum of the samples' losses, a scalar that autograd can differentiate. `logits` is
  // [samples, classes] and `labels` [samples] of int64, both on one device. Every sample's loss
  // must depend on that sample only, so that a batch's loss is the sum over its micro-batches.
  at::Tensor (*sum)(const at::Tensor& logits, const at::Tensor& labels);
};
// The first row is the loss of all runs.
std::span<const LossRow> lossTable();

// A micro-batch as metrics see it.
struct MicroBatchScores {
  double lossSum = 0;  // of all samples
  // Per sample, the number of classes whose logit ranks above the label's; empty if no logits were
  // computed.
  std::vector<std::int64_t> ranks;
};
// Among equal logits the lower class ranks first. A label whose logit is NaN ranks last. `logits`
// is [samples, classes], in any memory.
std::vector<std::int64_t> ranksOf(const at::Tensor& logits, std::span<const std::int64_t> labels);

struct BatchMetricRow {
  std::string_view name;         // a column of the run's files: docs/metrics.md
  std::string_view description;  // of its mean over samples; one line
  // The sum over the micro-batch's samples. Exact sums of counts do not depend on the order of
  // micro-batches.
  double (*sum)(const MicroBatchScores& scores);
};
// In column order; the first is the loss.
std::span<const BatchMetricRow> batchMetricTable();

}  // namespace cleave
