#include "common/model/stage/owner_gradients.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

namespace cleave {

OwnerGradients::OwnerGradients(const StageOptions& options, const std::vector<BlockSpec>& blocks,
                               const ParameterSet& set, const Division& division)
    : set_(set), division_(division) {
  const std::vector<int> cuts = options.allCuts();
  std::size_t position = 0;
  for (int b = 0; b < static_cast<int>(blocks.size()); ++b) {
    const auto after = std::upper_bound(cuts.begin(), cuts.end(), b);
    const bool isOfClient = after == cuts.begin() || after == cuts.end();
    const auto body = static_cast<std::size_t>(after - cuts.begin() - 1);
    const auto& replicas = options.bodyReplicas;
    const std::size_t owners = isOfClient         ? division.members.size()
                               : replicas.empty() ? 1
                                                  : replicas.at(body);
    for (std::size_t t = 0; t < blocks[static_cast<std::size_t>(b)].tensors.size(); ++t) {
      const at::Tensor& tensor = set.tensors()[position++];
      if (owners <= 1 || !tensor.requires_grad()) continue;
      leaves_.push_back({tensor, isOfClient, std::vector<at::Tensor>(owners)});
      maxOwners_ = std::max(maxOwners_, static_cast<std::uint32_t>(owners));
    }
  }
}

void OwnerGradients::swap(std::uint32_t member, std::uint32_t i) {
  for (Leaf& leaf : leaves_) {
    const std::size_t owner = leaf.isOfClient ? member : i;
    std::swap(leaf.tensor.mutable_grad(), leaf.gradients[owner % leaf.gradients.size()]);
  }
}

void OwnerGradients::begin(std::uint32_t i) { swap(division_.memberOf(i), i); }
void OwnerGradients::end(std::uint32_t i) { swap(division_.memberOf(i), i); }

void OwnerGradients::sum() {
  for (std::uint32_t owner = 0; owner < maxOwners_; ++owner) {
    swap(owner, owner);
    set_.joinGradients();  // each owner joins its own
    swap(owner, owner);
  }
  for (Leaf& leaf : leaves_) {
    at::Tensor& total = leaf.tensor.mutable_grad();
    const bool exists = std::ranges::any_of(leaf.gradients, &at::Tensor::defined);
    for (at::Tensor& each : leaf.gradients) {
      // A member without samples sends zeros, which may change the sign of a zero in the sum.
      if (!each.defined() && leaf.isOfClient && exists) each = at::zeros_like(leaf.tensor);
      if (!each.defined()) continue;
      total = total.defined() ? total.add(each) : each;
    }
  }
}

}  // namespace cleave
