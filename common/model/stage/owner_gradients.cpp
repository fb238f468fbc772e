#include "common/model/stage/owner_gradients.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

namespace cleave {
namespace {

std::uint32_t membersOf(const Division& division) {
  return std::max<std::uint32_t>(1, static_cast<std::uint32_t>(division.members.size()));
}

// Adds `added` to a sum that nobody else has; an undefined one is empty.
void addTo(at::Tensor& sum, const at::Tensor& added) {
  if (!added.defined()) return;
  sum = sum.defined() ? sum.add(added) : added;
}

}  // namespace

OwnerGradients OwnerGradients::ofModel(const StageOptions& options,
                                       const std::vector<BlockSpec>& blocks,
                                       const ParameterSet& set, const Division& division) {
  OwnerGradients owners(set, division);
  const std::vector<int> cuts = options.allCuts();
  const std::uint32_t members = membersOf(division);
  std::size_t position = 0;
  for (int b = 0; b < static_cast<int>(blocks.size()); ++b) {
    const auto after = std::upper_bound(cuts.begin(), cuts.end(), b);
    const bool isOfClient = after == cuts.begin() || after == cuts.end();
    const auto body = static_cast<std::size_t>(after - cuts.begin() - 1);
    const auto& ofBodies = options.bodyReplicas;
    const std::uint32_t replicas = isOfClient || ofBodies.empty() ? 1 : ofBodies.at(body);
    const bool isByMember = isOfClient || options.cohort.isByMember();
    for (std::size_t t = 0; t < blocks[static_cast<std::size_t>(b)].tensors.size(); ++t) {
      owners.add(set.tensors()[position++], replicas, isByMember ? members : 1, isOfClient);
    }
  }
  return owners;
}

OwnerGradients OwnerGradients::ofBody(const ParameterSet& set, const Division& division) {
  OwnerGradients owners(set, division);
  for (const at::Tensor& tensor : set.tensors()) owners.add(tensor, 1, membersOf(division), false);
  return owners;
}

void OwnerGradients::add(const at::Tensor& tensor, std::uint32_t replicas, std::uint32_t members,
                         bool areSent) {
  if (replicas * members <= 1 || !tensor.requires_grad()) return;
  leaves_.push_back(
      {tensor, replicas, members, areSent, std::vector<at::Tensor>(replicas * members)});
  maxReplicas_ = std::max(maxReplicas_, replicas);
  maxMembers_ = std::max(maxMembers_, members);
}

void OwnerGradients::swap(std::uint32_t replica, std::uint32_t member) {
  for (Leaf& leaf : leaves_) {
    std::swap(leaf.tensor.mutable_grad(), leaf.gradientOf(replica, member));
  }
}

void OwnerGradients::begin(std::uint32_t i) { swap(i, division_.memberOf(i)); }
void OwnerGradients::end(std::uint32_t i) { swap(i, division_.memberOf(i)); }

void OwnerGradients::sum() {
  for (std::uint32_t replica = 0; replica < maxReplicas_; ++replica) {
    for (std::uint32_t member = 0; member < maxMembers_; ++member) {
      swap(replica, member);
      set_.joinGradients();  // each owner joins its own
      swap(replica, member);
    }
  }
  for (Leaf& leaf : leaves_) {
    const bool exists = std::ranges::any_of(leaf.gradients, &at::Tensor::defined);
    at::Tensor total;
    for (std::uint32_t replica = 0; replica < leaf.replicas; ++replica) {
      at::Tensor ofReplica;
      for (std::uint32_t member = 0; member < leaf.members; ++member) {
        at::Tensor each = std::exchange(leaf.gradientOf(replica, member), at::Tensor());
        // A member without samples sends zeros, which may change the sign of a zero in the sum.
        if (!each.defined() && leaf.areSent && exists) each = at::zeros_like(leaf.tensor);
        addTo(ofReplica, each);
      }
      addTo(total, ofReplica);
    }
    leaf.tensor.mutable_grad() = total;
  }
}

}  // namespace cleave
