#include "common/model/stage/labeled_batch.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "common/model/torch_tensor.h"

namespace cleave {

at::Tensor borrowedArray(const TensorView& array) {
  const at::ScalarType type = array.spec.dtype == DType::i64 ? at::kLong : at::kFloat;
  return at::from_blob(const_cast<std::byte*>(array.data), array.spec.shape, type);
}

void LabeledBatch::begin(const BatchView& batch) {
  batch_ = batch;
  metrics_ = {};
  own_.reset();
  losses_.clear();
  outputs_.clear();
  if (samples() == 0) return;  // a member of a cohort may have none
  const auto& shape = batch_.target().spec.shape;
  cleave::checkLoss(scores_.loss, output_, batch_.target().spec.dtype,
                    {shape.begin() + 1, shape.end()});
  checkClasses();
  const double weight = weightOfWhole();
  weight_ = weight > 0 ? weight : 1;  // if no target counts, all losses are 0
}

// The targets of other members are not known here, so all must count alike.
double LabeledBatch::weightOfWhole() const {
  const auto weightOf = [&](const at::Tensor& target) {
    return loss_.weight(loss_.rows({}, target), scores_.loss);
  };
  const at::Tensor target = borrowedArray(batch_.target());
  const double weight = weightOf(target);
  if (batch_.whole == 0) return weight;
  const double each = weight / samples();
  for (std::int64_t n = 0; n < target.size(0); ++n) {
    if (weightOf(target.narrow(0, n, 1)) == each) continue;
    throw UsageError("bad-label",
                     "sample " + std::to_string(n) +
                         " of the batch has another weight in the loss than the samples before it, "
                         "which is not supported in a cohort: a member does not know the weights "
                         "of the others' samples",
                     "remove train.loss.class_weights, and targets that the loss ignores")
        .about("train.loss");
  }
  return each * batch_.whole;
}

void LabeledBatch::checkClasses() const {
  const TensorView& target = batch_.target();
  if (loss_.target == TargetKind::labels) {
    const std::span<const float> values(reinterpret_cast<const float*>(target.data),
                                        target.spec.elements());
    const auto outside = std::find_if(values.begin(), values.end(),
                                      [](float value) { return !(value >= 0 && value <= 1); });
    if (outside == values.end()) return;
    throw UsageError("bad-label",
                     "the target has the value " + std::to_string(*outside) +
                         ", but bce_with_logits needs values from 0 to 1",
                     "correct the data, or set train.loss: mse");
  }
  if (loss_.target != TargetKind::classes) return;
  const std::span<const std::int64_t> values(reinterpret_cast<const std::int64_t*>(target.data),
                                             target.spec.elements());
  const auto wrong = std::find_if(values.begin(), values.end(), [&](std::int64_t value) {
    return value != scores_.loss.ignoreIndex && (value < 0 || value >= output_.back());
  });
  if (wrong == values.end()) return;
  const std::int64_t perSample = std::ssize(values) / batch_.samples();
  throw UsageError("bad-label",
                   "label " + std::to_string(*wrong) + " of sample " +
                       std::to_string((wrong - values.begin()) / perSample) +
                       " of the batch is not one of the model's " + std::to_string(output_.back()) +
                       " classes, 0 to " + std::to_string(output_.back() - 1),
                   "correct the data or data.target, or export a model with more classes");
}

at::Tensor LabeledBatch::slice(const TensorView& array, const MicroBatch& at) const {
  return borrowedArray(array).narrow(0, at.offset() - batch_.first, at.size());
}

TensorList LabeledBatch::inputs(const MicroBatch& at) const {
  TensorList inputs;
  for (std::size_t n = 0; n + 1 < batch_.arrays.size(); ++n) {
    // Always copies: a head may return its input unchanged, and the link may still be sending that
    // after the caller has released the batch.
    const at::Tensor borrowed = slice(batch_.arrays[n], at);
    const MemoryOrder order = cutOrder(static_cast<std::size_t>(borrowed.dim()));
    const at::Tensor input = canonical(device_.toDevice(borrowed), order);
    inputs.push_back(input.is_same(borrowed) ? input.clone() : input);
  }
  return inputs;
}

at::Tensor LabeledBatch::loss(const at::Tensor& output, const MicroBatch& at) {
  const at::Tensor target = device_.toDevice(slice(batch_.target(), at));
  const LossRows rows = loss_.rows(output.to(at::kFloat), target);
  const at::Tensor loss = loss_.sum(rows, scores_.loss).div(weight_);
  count(at, loss.item<float>(), rows);
  if (keepsOutputs_) {
    outputs_.resize(at.batch.count);
    outputs_[at.i] = output.detach().to(at::kCPU, at::kFloat);
  }
  return loss;
}

at::Tensor LabeledBatch::outputs() const { return at::cat(outputs_).contiguous(); }

void LabeledBatch::checkLoss(const MicroBatch& at, const TensorList& activations1) const {
  const float loss = losses_[at.i];
  if (std::isfinite(loss)) return;
  const bool arrived = std::any_of(
      activations1.begin(), activations1.end(),
      [](const at::Tensor& each) { return !at::isfinite(each.detach()).all().item<bool>(); });
  throw RunError(
      "non-finite",
      "the loss is " + std::string(std::isnan(loss) ? "not a number" : "infinite") + " in " +
          std::string(phaseName(at.phase)) + " step " + std::to_string(at.step) + ", micro-batch " +
          std::to_string(at.i) + ": its activation/1 " +
          (arrived ? "had non-finite values when it arrived, so head, body or a codec produced them"
                   : "was finite when it arrived, so the tail produced it"),
      "lower train.learning_rate.peak, lengthen its warm-up, or use a codec with more bits");
}

void LabeledBatch::count(const MicroBatch& at, float loss, const LossRows& rows) {
  losses_.resize(at.batch.count);
  losses_[at.i] = loss;
  metrics_.samples += at.size();
  metrics_.sums[kLossSum] += double{loss} * weight_;
  // Adds the micro-batch's share of the weight, so that the shares add up to exactly the batch's
  // weight.
  const LossRows targets = loss_.rows({}, slice(batch_.target(), at));
  metrics_.sums[kLossWeight] += loss_.weight(targets, scores_.loss);
  const ScoredRows scored(rows, targets.target, loss_.target, scores_.loss);
  for (const std::string& name : scores_.metrics) {
    const BatchMetricRow& metric = findBatchMetric(name);
    const bool isCounted =
        metric.add != nullptr && (at.phase == Phase::eval || !metric.evaluationOnly);
    if (isCounted) metric.add(scored, loss_.target, metrics_.sums);
  }
}

}  // namespace cleave
