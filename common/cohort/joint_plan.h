// The batches of a cohort: which samples of which member each has. All members and servers make the
// same plan from the run spec and the roster; so does one client with the samples of all.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "common/topology/cohort.h"
#include "common/topology/step.h"

namespace cleave {

class JointPlan {
 public:
  struct Options {
    std::uint64_t seed = 1;
    std::uint32_t batch = 1;         // samples of a training batch, of all members together
    std::uint32_t evalBatch = 1;     // samples of an evaluation batch
    std::uint32_t microBatches = 1;  // M: a micro-batch has at most ceil(batch / M) samples
  };
  // The roster has the samples of at least one member.
  JointPlan(const Options& options, Roster roster);

  const Roster& roster() const { return roster_; }
  // Of all members.
  std::uint32_t samples() const { return train_.samples; }
  std::uint64_t stepsPerEpoch() const { return train_.batches; }
  // The first sample of a member among those of all, which are numbered member by member.
  std::uint32_t firstSampleOf(std::uint32_t member) const { return train_.first[member]; }

  // How a batch is divided: the samples of each member in their order in the batch, member by
  // member. Evaluation batches are numbered over the whole run; without evaluation samples, each is
  // empty. Any thread.
  Division division(Phase phase, std::uint64_t step) const;

  // A pass over the samples of one member, or of all (nullopt), in batches.
  struct Pass {
    std::vector<std::uint32_t> order;  // samples, numbered within the member, or among all
    std::vector<std::uint32_t> sizes;  // samples per batch; may be 0
  };
  Pass trainingPass(std::optional<std::uint32_t> member, std::uint64_t epoch) const;
  Pass evaluationPass(std::optional<std::uint32_t> member) const;

 private:
  // A set of samples in batches of `batch`, of which the last one may be smaller.
  struct Set {
    Set(const std::vector<std::uint32_t>& byMember, std::uint32_t batchSize, std::uint32_t m);
    std::uint32_t memberOf(std::uint32_t sample) const;

    std::vector<std::uint32_t> first;  // of each member, then the number of samples
    std::uint32_t samples = 0, batch = 1, batches = 0;
    std::uint32_t largest = 1;  // samples of a micro-batch
  };
  using Divisions = std::vector<Division>;  // of the batches of a pass
  // The samples of all members, in the order of a pass: shuffled in an epoch of training.
  std::vector<std::uint32_t> orderOf(Phase phase, std::uint64_t epoch) const;
  Divisions divide(Phase phase, std::uint64_t epoch) const;
  Pass passOf(Phase phase, std::uint64_t epoch, std::optional<std::uint32_t> member) const;
  const Set& setOf(Phase phase) const { return phase == Phase::train ? train_ : evaluation_; }

  const Options options_;
  const Roster roster_;
  const Set train_, evaluation_;
  mutable std::mutex mutex_;
  mutable std::map<std::uint64_t, Divisions> known_;  // by epoch; of evaluations: 0
};

// The most micro-batches that a batch of a cohort has: each member but one may add one that is not
// full.
constexpr std::uint32_t maxMicroBatches(std::uint32_t microBatches, std::uint32_t members) {
  return microBatches + members - 1;
}

}  // namespace cleave
