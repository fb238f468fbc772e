// The table of losses (`train.loss`): what the tail computes from the model's output and the
// target. To add one, add a row to losses.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/codec/tensor.h"

namespace cleave {

struct LossSpec {
  std::string name = "cross_entropy";
  // The members below apply only to losses of classes.
  double labelSmoothing = 0;
  std::vector<double> classWeights = {};  // one per class; empty: all 1
  std::int64_t ignoreIndex = -100;        // targets with this value are ignored

  bool operator==(const LossSpec&) const = default;
};

// The form of a target.
enum class TargetKind : std::uint8_t {
  classes,  // i64: a class per row of the output
  labels,   // f32: 0 or 1 per value of the output
  numbers,  // f32: a number per value of the output
  none,     // the output is the loss
};

// The output and the target in the form that the loss compares, one row per decision. For
// TargetKind::classes: output [rows, classes], target [rows]; for the others both [rows, values].
struct LossRows {
  at::Tensor output;
  at::Tensor target;
};

struct LossRow {
  std::string_view name;         // "cross_entropy"
  std::string_view description;  // one line
  TargetKind target;
  std::string_view metrics;  // the default value of train.metrics: "top1, top5"
  // Throws UsageError "bad-target" unless the shapes, both without the batch, fit each other.
  void (*check)(const std::vector<std::int64_t>& output, const std::vector<std::int64_t>& target);
  // Converts a model's output and target, both [samples, …] and on one device, to rows.
  LossRows (*rows)(const at::Tensor& output, const at::Tensor& target);
  // The sum of the rows' losses, a scalar that autograd can differentiate. Each sample's loss must
  // depend on that sample only, so that a batch's loss is the sum over its micro-batches.
  at::Tensor (*sum)(const LossRows& rows, const LossSpec& spec);
  // The divisor of a batch's sum, computed from the rows of the whole batch: the number of rows,
  // or, as in PyTorch's mean, the sum of their weights. `output` is undefined.
  double (*weight)(const LossRows& rows, const LossSpec& spec);
};
std::span<const LossRow> lossTable();
// Throws UsageError with the nearest known name.
const LossRow& findLoss(std::string_view name);

// Throws UsageError "bad-target" if the loss cannot compare this output with this target, or the
// number of class weights differs from the number of classes. Shapes are without the batch.
void checkLoss(const LossSpec& spec, const std::vector<std::int64_t>& output, DType targetType,
               const std::vector<std::int64_t>& target);

}  // namespace cleave
