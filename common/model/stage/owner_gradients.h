// The gradients of the owners of micro-batches, accumulated owner by owner.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "common/model/stage/stage.h"

namespace cleave {

// Accumulates the gradients of one training batch with one set of gradients per owner, and adds
// them in the order of the owners, so that the result does not depend on the order in which the
// owners' micro-batches are computed. Those of a cohort's members, in each stage; and, if the whole
// model is computed in one process, those of a body's replicas.
class OwnerGradients {
 public:
  // Of the whole model, whose parts accumulate as those of a split model do. `set`: the leaves of
  // the batch; borrowed.
  static OwnerGradients ofModel(const StageOptions& options, const std::vector<BlockSpec>& blocks,
                                const ParameterSet& set, const Division& division);
  // Of a body that accumulates member by member (Cohort::isByMember()).
  static OwnerGradients ofBody(const ParameterSet& set, const Division& division);

  // Call before and after a backward of micro-batch i.
  void begin(std::uint32_t i);
  void end(std::uint32_t i);
  // Call after the last backward. Adds the owners' gradients: those of members in their order, then
  // the sums of replicas in rank order.
  void sum();

 private:
  struct Leaf {
    at::Tensor tensor;  // a trained parameter
    std::uint32_t replicas = 1;
    std::uint32_t members = 1;
    // Whether those of each member cross the link: of head and tail.
    bool areSent = false;
    std::vector<at::Tensor> gradients;  // by replica, and then by member

    at::Tensor& gradientOf(std::uint32_t replica, std::uint32_t member) {
      return gradients[replica % replicas * members + member % members];
    }
  };
  OwnerGradients(const ParameterSet& set, const Division& division)
      : set_(set), division_(division) {}
  void add(const at::Tensor& tensor, std::uint32_t replicas, std::uint32_t members, bool areSent);
  // Exchanges the leaves' gradients with those of these owners.
  void swap(std::uint32_t replica, std::uint32_t member);

  const ParameterSet& set_;
  const Division division_;
  std::vector<Leaf> leaves_;
  std::uint32_t maxReplicas_ = 1, maxMembers_ = 1;
};

}  // namespace cleave
