#include "common/model/stage/stage_cut.h"

#include <ATen/ops/zeros_like.h>
#include <spdlog/fmt/fmt.h>

#include <stdexcept>
#include <utility>

#include "common/model/blocks.h"
#include "common/model/torch_tensor.h"

namespace cleave {

StageCut::StageCut(const StageOptions& options, const std::vector<BlockSpec>& blocks, int cut,
                   ComputeDevice& device)
    : staysOnDevice_(options.staysOnDevice),
      tensors_(outputsAt(blocks, options.cuts, cut)),
      device_(device) {
  const CutTensors tensors = cutTensorsAt(blocks, options.cuts, cut);
  activations_ = activationsOf(cut, tensors);
  gradients_ = gradientsOf(cut, tensors);
}

TensorSpec StageCut::specOf(Flow flow, const MicroBatch& at) const {
  return specOfOutput(tensors_.at(flow.tensor), at.size());
}

// A graph may compute something else than it declares.
void StageCut::checkLeaving(const MicroBatch& at, const at::Tensor& tensor, Flow flow) const {
  const TensorSpec expected = specOf(flow, at);
  const bool hasMemory = tensor.layout() == at::kStrided && !tensor._is_zerotensor();
  if (hasMemory && tensor.scalar_type() == scalarTypeOf(expected.dtype) &&
      tensor.sizes() == at::IntArrayRef(expected.shape) &&
      tensor.device().type() == device_.device().type()) {
    return;
  }
  throw UsageError(
      "bad-graph",
      fmt::format("the model computed {} [{}] as {} of micro-batch {}, but declares {}",
                  c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                  flowName(flow), at.i, toString(expected)),
      "export the model again with cleave_split.export, with the PyTorch of this version of Cleave")
      .about("model.file");
}

Payload StageCut::leaving(const MicroBatch& at, const at::Tensor& tensor, Flow flow) const {
  checkLeaving(at, tensor, flow);
  const MemoryOrder order = cutOrder(static_cast<std::size_t>(tensor.dim()));
  const at::Tensor leaving = canonical(tensor.detach(), order);
  return toPayload(staysOnDevice_.get(flow) ? leaving : device_.toHost(leaving), order);
}

at::Tensor StageCut::entering(const MicroBatch& at, Payload payload, Flow flow) const {
  const TensorSpec expected = specOf(flow, at);
  if (payload.view().spec != expected) {
    throw std::logic_error("a stage got " + toString(payload.view().spec) + " instead of " +
                           toString(expected));
  }
  const bool isThere = payload.view().place == MemoryPlace::device;
  const at::Tensor tensor = toTensor(std::move(payload), device_.device());
  return isThere ? tensor : device_.toDevice(tensor);
}

TensorBundle StageCut::leave(const MicroBatch& at, const TensorList& outputs) const {
  TensorBundle bundle;
  for (const Flow flow : activations_) bundle.push_back(leaving(at, outputs.at(flow.tensor), flow));
  return bundle;
}

TensorList StageCut::enter(const MicroBatch& at, TensorBundle activations, bool training) const {
  TensorList tensors;
  for (const Flow flow : activations_) {
    tensors.push_back(entering(at, std::move(activations.at(flow.tensor)), flow));
    const bool hasGradient = tensors_[flow.tensor].tensor.hasGradient;
    if (training && hasGradient) tensors.back().set_requires_grad(true);
  }
  return tensors;
}

TensorBundle StageCut::leaveGradients(const MicroBatch& at, const TensorList& leaves) const {
  TensorBundle bundle;
  for (const Flow flow : gradients_) {
    const at::Tensor& leaf = leaves.at(flow.tensor);
    bundle.push_back(leaving(at, leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf), flow));
  }
  return bundle;
}

// The outputs that have a gradient.
Roots StageCut::rootsOf(const MicroBatch& at, const TensorList& outputs,
                        TensorBundle gradients) const {
  Roots roots;
  for (std::size_t g = 0; g < gradients_.size(); ++g) {
    const at::Tensor& output = outputs.at(gradients_[g].tensor);
    // A part without parameters in front of it, such as a flatten, needs no gradient.
    if (!output.requires_grad()) continue;
    roots.outputs.push_back(output);
    roots.gradients.push_back(entering(at, std::move(gradients.at(g)), gradients_[g]));
  }
  return roots;
}

void StageCut::backward(const MicroBatch& at, const TensorList& outputs,
                        TensorBundle gradients) const {
  cleave::backward(rootsOf(at, outputs, std::move(gradients)));
}

SplitBackward StageCut::splitBackward(const MicroBatch& at, const TensorList& outputs,
                                      TensorBundle gradients, const TensorList& leaves) const {
  return {rootsOf(at, outputs, std::move(gradients)), leaves};
}

}  // namespace cleave
