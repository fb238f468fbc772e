#include "common/model/stage/replica_gradients.h"

#include <utility>

namespace cleave {

ReplicaGradients::ReplicaGradients(const StageOptions& options,
                                   const std::vector<BlockSpec>& blocks, const ParameterSet& set)
    : set_(set), gradients_(options.replica.count) {
  std::size_t position = 0;
  for (int b = 0; b < options.cuts.cut1; ++b) {
    for (std::size_t t = 0; t < blocks[static_cast<std::size_t>(b)].tensors.size(); ++t) {
      const at::Tensor& tensor = set.tensors()[position++];
      if (b >= options.cuts.cut0 && tensor.requires_grad()) leaves_.push_back(tensor);
    }
  }
  for (TensorList& each : gradients_) each.resize(leaves_.size());
}

// Exchanges the gradients of the leaves with those of the replica.
void ReplicaGradients::swap(std::size_t replica) {
  for (std::size_t l = 0; l < leaves_.size(); ++l) {
    std::swap(leaves_[l].mutable_grad(), gradients_[replica][l]);
  }
}

void ReplicaGradients::begin(std::uint32_t i) { swap(i % gradients_.size()); }
void ReplicaGradients::end(std::uint32_t i) { swap(i % gradients_.size()); }

void ReplicaGradients::sum() {
  for (std::size_t r = 0; r < gradients_.size(); ++r) {
    swap(r);
    set_.joinGradients();  // each replica joins its own
    swap(r);
  }
  for (std::size_t l = 0; l < leaves_.size(); ++l) {
    at::Tensor& total = leaves_[l].mutable_grad();
    for (const TensorList& each : gradients_) {
      if (!each[l].defined()) continue;
      total = total.defined() ? total.add(each[l]) : each[l];
    }
  }
}

}  // namespace cleave
