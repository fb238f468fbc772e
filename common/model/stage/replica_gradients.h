// Bodies with replicas, computed by the whole model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "common/model/stage/stage.h"

namespace cleave {

// The gradients of bodies with replicas, in the whole model: each replica's micro-batches have
// gradients of their own. One training batch.
class ReplicaGradients {
 public:
  // Requires StageOptions::bodyReplicas. `set`: the whole model's leaves of the batch; borrowed.
  ReplicaGradients(const StageOptions& options, const std::vector<BlockSpec>& blocks,
                   const ParameterSet& set);

  // Call before and after the backward of micro-batch i.
  void begin(std::uint32_t i);
  void end(std::uint32_t i);
  // Call after the last backward. Adds the replicas' gradients in rank order.
  void sum();

 private:
  struct Leaf {
    at::Tensor tensor;                  // a trained parameter of a body
    std::vector<at::Tensor> gradients;  // by replica of the body
  };
  void swap(std::uint32_t i);

  const ParameterSet& set_;
  std::vector<Leaf> leaves_;
  std::uint32_t maxReplicas_ = 1;
};

}  // namespace cleave
