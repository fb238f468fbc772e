#include "common/model/losses.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/tensor.h>

#include "common/core/error.h"
#include "common/core/names.h"
#include "common/model/blocks.h"

namespace cleave {
namespace {

[[noreturn]] void refuse(const std::string& sentence, const std::string& hint) {
  throw UsageError("bad-target", sentence, hint).about("train.loss");
}

at::Tensor weightsOf(const LossSpec& spec, at::Device device) {
  if (spec.classWeights.empty()) return {};
  return at::tensor(spec.classWeights, at::kFloat).to(device);
}

// ---- Classes ----

// -log(softmax(output)[target]), summed.
at::Tensor crossEntropy(const LossRows& rows, const LossSpec& spec) {
  return at::cross_entropy_loss(rows.output, rows.target, weightsOf(spec, rows.output.device()),
                                at::Reduction::Sum, spec.ignoreIndex, spec.labelSmoothing);
}

double weightOfClasses(const LossRows& rows, const LossSpec& spec) {
  const at::Tensor counted = rows.target.ne(spec.ignoreIndex);
  if (spec.classWeights.empty()) return static_cast<double>(counted.sum().item<std::int64_t>());
  const at::Tensor weights = weightsOf(spec, rows.target.device());
  const at::Tensor each = weights.index_select(0, rows.target.masked_select(counted));
  return each.to(at::kDouble).sum().item<double>();
}

void checkOneClass(const Shape& output, const Shape& target) {
  if (output.size() == 1 && target.empty()) return;
  refuse("the model returns " + toString(output) + " per sample and the target is " +
             toString(target) +
             "; cross_entropy needs one output per class, and one class per sample as the target",
         "export a model that returns [samples, classes], or set train.loss: next_token for token "
         "ids");
}

LossRows sameRows(const at::Tensor& output, const at::Tensor& target) { return {output, target}; }

// Position p predicts token p + 1.
LossRows nextTokens(const at::Tensor& output, const at::Tensor& target) {
  const std::int64_t length = target.size(1);
  at::Tensor predictions;
  if (output.defined()) predictions = output.narrow(1, 0, length - 1).flatten(0, 1);
  return {predictions, target.narrow(1, 1, length - 1).flatten()};
}

void checkTokens(const Shape& output, const Shape& target) {
  if (output.size() == 2 && target.size() == 1 && output[0] == target[0] && target[0] > 1) return;
  refuse("the model returns " + toString(output) + " per sample and the target is " +
             toString(target) +
             "; next_token needs [tokens, vocabulary] and as many token ids, at least 2",
         "export a language model, and set data.target to its token ids");
}

// ---- Values ----

// One row per sample. A target without its own dimension fits an output of one value.
LossRows valueRows(const at::Tensor& output, const at::Tensor& target) {
  return {output.defined() ? output.flatten(1) : output,
          target.dim() == 1 ? target.unsqueeze(1) : target.flatten(1)};
}

void checkValues(const Shape& output, const Shape& target) {
  if (elementCount(output) == elementCount(target)) return;
  refuse("the model returns " + toString(output) + " per sample, but the target is " +
             toString(target),
         "export a model that returns one value for each of the target's");
}

double valueCount(const LossRows& rows, const LossSpec&) {
  return static_cast<double>(rows.target.numel());
}

at::Tensor squaredError(const LossRows& rows, const LossSpec&) {
  return at::mse_loss(rows.output, rows.target, at::Reduction::Sum);
}

at::Tensor binaryCrossEntropy(const LossRows& rows, const LossSpec&) {
  return at::binary_cross_entropy_with_logits(rows.output, rows.target, {}, {}, at::Reduction::Sum);
}

// ---- The model's own loss ----

void checkOutputLoss(const Shape& output, const Shape&) {
  if (elementCount(output) == 1) return;
  refuse("the model returns " + toString(output) + " per sample, which is not a loss",
         "export a model that returns one value per sample, or choose another train.loss");
}

LossRows outputOnly(const at::Tensor& output, const at::Tensor& target) { return {output, target}; }

at::Tensor sumOfOutput(const LossRows& rows, const LossSpec&) { return rows.output.sum(); }

double sampleCount(const LossRows& rows, const LossSpec&) {
  return static_cast<double>(rows.target.size(0));
}

constexpr LossRow kLosses[] = {
    {"cross_entropy", "cross entropy of the classes' softmax, for one class per sample",
     TargetKind::classes, "top1, top5", checkOneClass, sameRows, crossEntropy, weightOfClasses},
    {"next_token", "cross entropy of each next token, for language models: the target is token ids",
     TargetKind::classes, "perplexity", checkTokens, nextTokens, crossEntropy, weightOfClasses},
    {"bce_with_logits", "binary cross entropy of each output, for targets of 0 and 1",
     TargetKind::labels, "accuracy", checkValues, valueRows, binaryCrossEntropy, valueCount},
    {"mse", "mean squared error, for targets of numbers", TargetKind::numbers, "rmse", checkValues,
     valueRows, squaredError, valueCount},
    {"output", "the model's output, one value per sample, is the loss", TargetKind::none, "",
     checkOutputLoss, outputOnly, sumOfOutput, sampleCount},
};

}  // namespace

std::span<const LossRow> lossTable() { return kLosses; }

const LossRow& findLoss(std::string_view name) {
  return findByName(lossTable(), name, "unknown-loss", "a loss");
}

void checkLoss(const LossSpec& spec, const Shape& output, DType targetType, const Shape& target) {
  const LossRow& row = findLoss(spec.name);
  const DType needed = row.target == TargetKind::classes ? DType::i64 : DType::f32;
  if (targetType != needed && row.target != TargetKind::none) {
    refuse("the loss " + spec.name + " needs a target of " + std::string(dtypeName(needed)) +
               ", but the data's is " + std::string(dtypeName(targetType)),
           needed == DType::i64 ? "set train.loss: mse, or write the target as integers"
                                : "set train.loss: cross_entropy, or write the target as floats");
  }
  row.check(output, target);
  const std::size_t weights = spec.classWeights.size();
  if (weights == 0 || static_cast<std::int64_t>(weights) == output.back()) return;
  throw UsageError("bad-target",
                   "there are " + std::to_string(weights) + " class weights, but the model has " +
                       std::to_string(output.back()) + " classes",
                   "give train.loss.class_weights one value per class")
      .about("train.loss");
}

}  // namespace cleave
