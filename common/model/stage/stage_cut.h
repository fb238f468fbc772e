// One end of a cut: what leaves and enters a stage there.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "common/device/compute_device.h"
#include "common/model/split_backward.h"
#include "common/model/stage/stage.h"

namespace cleave {

// Used by the stages on both of its sides. Checks the specs of entering tensors.
// The engine has already checked them, so a wrong spec is a bug and throws std::logic_error.
class StageCut {
 public:
  // `cut`: one of the numbers in options.cuts. The device is borrowed.
  StageCut(const StageOptions& options, const std::vector<BlockSpec>& blocks, int cut,
           ComputeDevice& device);

  bool hasGradients() const { return !gradients_.empty(); }
  // Detaches the outputs from autograd, makes them canonical, and copies them to host memory, or
  // leaves them on the device if their codec runs there.
  // Throws UsageError "bad-graph" if they are not those that the model declares.
  TensorBundle leave(const MicroBatch& at, const TensorList& outputs) const;
  // Returns the activations on the stage's device. With `training`, those that have gradients are
  // leaves that require one.
  TensorList enter(const MicroBatch& at, TensorBundle activations, bool training) const;
  // Returns the gradients of the leaves that enter() returned. Throws as leave() does.
  TensorBundle leaveGradients(const MicroBatch& at, const TensorList& leaves) const;
  // Backpropagates the gradients into the outputs that were passed to leave().
  void backward(const MicroBatch& at, const TensorList& outputs, TensorBundle gradients) const;
  // Computes only the first part of backward(); `leaves` are those that enter() of the part's other
  // cut returned.
  SplitBackward splitBackward(const MicroBatch& at, const TensorList& outputs,
                              TensorBundle gradients, const TensorList& leaves) const;

 private:
  Roots rootsOf(const MicroBatch& at, const TensorList& outputs, TensorBundle gradients) const;
  Payload leaving(const MicroBatch& at, const at::Tensor& tensor, Flow flow) const;
  void checkLeaving(const MicroBatch& at, const at::Tensor& tensor, Flow flow) const;
  at::Tensor entering(const MicroBatch& at, Payload payload, Flow flow) const;

  TensorSpec specOf(Flow flow, const MicroBatch& at) const;

  FlowMap<bool> staysOnDevice_;
  std::vector<BlockOutput> tensors_;
  std::vector<Flow> activations_, gradients_;
  ComputeDevice& device_;
};

}  // namespace cleave
