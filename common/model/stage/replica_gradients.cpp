#include "common/model/stage/replica_gradients.h"

#include <algorithm>
#include <utility>

namespace cleave {

ReplicaGradients::ReplicaGradients(const StageOptions& options,
                                   const std::vector<BlockSpec>& blocks, const ParameterSet& set)
    : set_(set) {
  const std::vector<int> cuts = options.allCuts();
  std::size_t position = 0;
  for (int b = 0; b < cuts.back(); ++b) {
    const auto after = std::upper_bound(cuts.begin(), cuts.end(), b);
    for (std::size_t t = 0; t < blocks[static_cast<std::size_t>(b)].tensors.size(); ++t) {
      const at::Tensor& tensor = set.tensors()[position++];
      if (after == cuts.begin() || !tensor.requires_grad()) continue;
      const auto body = static_cast<std::size_t>(after - cuts.begin() - 1);
      const std::uint32_t replicas = options.bodyReplicas.at(body);
      leaves_.push_back({tensor, std::vector<at::Tensor>(replicas)});
      maxReplicas_ = std::max(maxReplicas_, replicas);
    }
  }
}

// Exchanges the leaves' gradients with those of the replicas that compute micro-batch i.
void ReplicaGradients::swap(std::uint32_t i) {
  for (Leaf& leaf : leaves_) {
    std::swap(leaf.tensor.mutable_grad(), leaf.gradients[i % leaf.gradients.size()]);
  }
}

void ReplicaGradients::begin(std::uint32_t i) { swap(i); }
void ReplicaGradients::end(std::uint32_t i) { swap(i); }

void ReplicaGradients::sum() {
  for (std::uint32_t r = 0; r < maxReplicas_; ++r) {
    swap(r);
    set_.joinGradients();  // each replica joins its own
    swap(r);
  }
  for (Leaf& leaf : leaves_) {
    at::Tensor& total = leaf.tensor.mutable_grad();
    for (const at::Tensor& each : leaf.gradients) {
      if (!each.defined()) continue;
      total = total.defined() ? total.add(each) : each;
    }
  }
}

}  // namespace cleave
