// What a part adds to a sum over the replicas of a body, or over the members of a cohort: for each
// trained parameter, 1 if it has a gradient, then the gradient; for each micro-batch, a slot.
#include "common/model/stage/trained_part.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <utility>

namespace cleave {
namespace {

// Consecutive floats as tensors.
class FloatReader {
 public:
  explicit FloatReader(std::span<const float> floats)
      : all_(at::from_blob(const_cast<float*>(floats.data()),
                           {static_cast<std::int64_t>(floats.size())}, at::kFloat)) {}
  // The next tensor of this shape; shares the floats' memory.
  at::Tensor next(at::IntArrayRef shape) {
    const std::int64_t size = c10::multiply_integers(shape);
    const at::Tensor tensor = all_.narrow(0, offset_, size).view(shape);
    offset_ += size;
    return tensor;
  }

 private:
  const at::Tensor all_;
  std::int64_t offset_ = 0;
};

}  // namespace

// A slot: 1 if the micro-batch exists, then mean and variance of each batch norm.
std::size_t TrainedPart::slotSize() const {
  if (normSizes_.empty()) return 0;
  std::int64_t size = 1;
  for (const std::int64_t channels : normSizes_) size += 2 * channels;
  return static_cast<std::size_t>(size);
}

std::size_t TrainedPart::shareSize() const {
  std::size_t size = experiment_.microBatches * slotSize();
  for (const NamedTensor& parameter : set_.parameters()) {
    if (parameter.tensor.requires_grad()) {
      size += 1 + static_cast<std::size_t>(parameter.tensor.numel());
    }
  }
  return size;
}

void TrainedPart::writeShare(std::uint64_t step, std::span<float> share) const {
  std::fill(share.begin(), share.end(), 0.0F);
  FloatReader rest(share);
  const ParameterSet& set = leavesOf(step);
  set.joinGradients();
  for (const NamedTensor& parameter : set.parameters()) {
    if (!parameter.tensor.requires_grad()) continue;
    const at::Tensor exists = rest.next({1}), target = rest.next(parameter.tensor.sizes());
    if (!parameter.tensor.grad().defined()) continue;
    exists.fill_(1);
    target.copy_(parameter.tensor.grad());
  }
  if (normSizes_.empty()) return;
  for (std::uint32_t i = 0; i < experiment_.microBatches; ++i) {
    const auto statistics = statistics_.find({keyOf(step), i});
    const at::Tensor slot = rest.next({static_cast<std::int64_t>(slotSize())});
    if (statistics == statistics_.end()) continue;
    TensorList values = {at::ones({1})};
    for (const NormStatistics& norm : statistics->second) {
      values.insert(values.end(), {norm.mean.to(at::kCPU), norm.variance.to(at::kCPU)});
    }
    slot.copy_(at::cat(values));
  }
}

void TrainedPart::readSum(std::uint64_t step, std::span<const float> sum) {
  FloatReader rest(sum);
  const ParameterSet& set = leavesOf(step);
  for (const NamedTensor& parameter : set.parameters()) {
    if (!parameter.tensor.requires_grad()) continue;
    const bool exists = rest.next({1}).item<float>() != 0;
    const at::Tensor values = rest.next(parameter.tensor.sizes());
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (!exists) continue;
    if (gradient.defined()) {
      gradient.copy_(values);
    } else {  // those of others only
      gradient = at::empty_like(parameter.tensor, parameter.tensor.options().requires_grad(false));
      gradient.copy_(values);
    }
  }
  if (normSizes_.empty()) return;
  const at::Device device = set_.buffers().front().tensor.device();
  const auto copy = [&](const at::Tensor& values) {
    return values.to(device, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  };
  for (std::uint32_t i = 0; i < experiment_.microBatches; ++i) {
    const bool exists = rest.next({1}).item<float>() != 0;
    std::vector<NormStatistics> statistics;
    for (const std::int64_t channels : normSizes_) {
      const at::Tensor mean = rest.next({channels}), variance = rest.next({channels});
      if (exists) statistics.push_back({copy(mean), copy(variance)});
    }
    if (exists) statistics_[{keyOf(step), i}] = std::move(statistics);
  }
}

}  // namespace cleave
