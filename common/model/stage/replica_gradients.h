// A body with replicas, computed by the whole model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "common/model/stage/stage.h"

namespace cleave {

// The gradients of a body with replicas, in the whole model: each replica's micro-batches have
// gradients of their own. One training batch.
class ReplicaGradients {
 public:
  // `set`: the whole model's leaves of the batch; borrowed.
  ReplicaGradients(const StageOptions& options, const std::vector<BlockSpec>& blocks,
                   const ParameterSet& set);

  // Call before and after the backward of micro-batch i.
  void begin(std::uint32_t i);
  void end(std::uint32_t i);
  // Call after the last backward. Adds the replicas' gradients in rank order.
  void sum();

 private:
  void swap(std::size_t replica);

  const ParameterSet& set_;
  TensorList leaves_;                  // trained parameters of the body
  std::vector<TensorList> gradients_;  // by replica
};

}  // namespace cleave
