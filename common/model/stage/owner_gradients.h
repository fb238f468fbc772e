// The gradients of owners of micro-batches, computed by the whole model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "common/model/stage/stage.h"

namespace cleave {

// Accumulates gradients owner by owner, as the parts of a split model do: those of a body's
// replicas, and, in head and tail, those of a cohort's members. One training batch.
class OwnerGradients {
 public:
  // `set`: the whole model's leaves of the batch; borrowed.
  OwnerGradients(const StageOptions& options, const std::vector<BlockSpec>& blocks,
                 const ParameterSet& set, const Division& division);

  // Call before and after the backward of micro-batch i.
  void begin(std::uint32_t i);
  void end(std::uint32_t i);
  // Call after the last backward. Adds the owners' gradients: replicas in rank order, members in
  // their order.
  void sum();

 private:
  struct Leaf {
    at::Tensor tensor;                  // a trained parameter
    bool isOfClient = false;            // of head or tail: the owners are members; else replicas
    std::vector<at::Tensor> gradients;  // by owner
  };
  // Exchanges the leaves' gradients with those of these owners.
  void swap(std::uint32_t member, std::uint32_t i);

  const ParameterSet& set_;
  const Division division_;
  std::vector<Leaf> leaves_;
  std::uint32_t maxOwners_ = 1;
};

}  // namespace cleave
