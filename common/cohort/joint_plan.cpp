#include "common/cohort/joint_plan.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

#include "common/core/random.h"

namespace cleave {
JointPlan::Set::Set(const std::vector<std::uint32_t>& byMember, std::uint32_t batchSize,
                    std::uint32_t m)
    : batch(batchSize), largest(Division::of(batchSize, m).largest()) {
  for (const std::uint32_t each : byMember) {
    first.push_back(samples);
    samples += each;
  }
  first.push_back(samples);
  batches = (samples + batch - 1) / batch;
}

std::uint32_t JointPlan::Set::memberOf(std::uint32_t sample) const {
  assert(sample < samples);
  const auto after = std::upper_bound(first.begin(), first.end(), sample);
  return static_cast<std::uint32_t>(after - first.begin() - 1);
}

JointPlan::JointPlan(const Options& options, Roster roster)
    : options_(options),
      roster_(std::move(roster)),
      train_(roster_.train, options.batch, options.microBatches),
      evaluation_(roster_.evaluation, options.evalBatch, options.microBatches) {
  assert(train_.samples > 0 && roster_.train.size() == roster_.evaluation.size());
}

std::vector<std::uint32_t> JointPlan::orderOf(Phase phase, std::uint64_t epoch) const {
  if (phase == Phase::train) {
    return randomPermutation(randomKey(options_.seed, "shuffle", {epoch}), train_.samples);
  }
  std::vector<std::uint32_t> order(evaluation_.samples);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

JointPlan::Divisions JointPlan::divide(Phase phase, std::uint64_t epoch) const {
  const Set& set = setOf(phase);
  const std::vector<std::uint32_t> order = orderOf(phase, epoch);
  Divisions divisions;
  for (std::uint32_t begin = 0; begin < set.samples; begin += set.batch) {
    std::vector<std::uint32_t> samples(roster_.train.size());
    const std::uint32_t end = std::min(set.samples, begin + set.batch);
    for (std::uint32_t n = begin; n < end; ++n) ++samples[set.memberOf(order[n])];
    divisions.push_back(Division::ofMembers(samples, set.largest));
  }
  return divisions;
}

Division JointPlan::division(Phase phase, std::uint64_t step) const {
  const Set& set = setOf(phase);
  assert(step > 0);
  if (set.batches == 0) return {};
  const std::uint64_t epoch = phase == Phase::train ? (step - 1) / set.batches + 1 : 0;
  const std::lock_guard lock(mutex_);
  auto found = known_.find(epoch);
  if (found == known_.end()) {
    // Steps that overlap belong to two epochs at most, and a peer may name any.
    constexpr std::size_t kMaxKnown = 4;
    if (known_.size() == kMaxKnown) known_.clear();
    found = known_.emplace(epoch, divide(phase, epoch)).first;
  }
  return found->second[(step - 1) % set.batches];
}

JointPlan::Pass JointPlan::passOf(Phase phase, std::uint64_t epoch,
                                  std::optional<std::uint32_t> member) const {
  const Set& set = setOf(phase);
  const std::vector<std::uint32_t> order = orderOf(phase, epoch);
  Pass pass;
  for (std::uint32_t begin = 0; begin < set.samples; begin += set.batch) {
    const auto first = order.begin() + begin;
    std::vector<std::uint32_t> batch(
        first, first + std::min<std::uint32_t>(set.batch, set.samples - begin));
    const auto memberOf = [&](std::uint32_t sample) { return set.memberOf(sample); };
    if (member) {
      std::erase_if(batch, [&](std::uint32_t sample) { return memberOf(sample) != *member; });
      for (std::uint32_t& sample : batch) sample -= set.first[*member];
    } else {
      std::ranges::stable_sort(batch, {}, memberOf);
    }
    pass.order.insert(pass.order.end(), batch.begin(), batch.end());
    pass.sizes.push_back(static_cast<std::uint32_t>(batch.size()));
  }
  return pass;
}

JointPlan::Pass JointPlan::trainingPass(std::optional<std::uint32_t> member,
                                        std::uint64_t epoch) const {
  return passOf(Phase::train, epoch, member);
}

JointPlan::Pass JointPlan::evaluationPass(std::optional<std::uint32_t> member) const {
  return passOf(Phase::eval, 0, member);
}

}  // namespace cleave
