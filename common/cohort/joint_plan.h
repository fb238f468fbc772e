// The batches of a cohort: which samples of which member each has. All members and servers make the
// same plan from the run spec and the roster; so does one client with the samples of all.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/topology/cohort.h"
#include "common/topology/step.h"

namespace cleave {

// Members may leave and join: each attendance but the first begins after a step from which the
// run continued. The samples of the epoch that are not yet in a batch, of those that are present
// then, are put into a new random order. So an epoch has each sample of the members that are
// present at its end once.
class JointPlan {
 public:
  struct Options {
    std::uint64_t seed = 1;
    std::uint32_t batch = 1;         // samples of a training batch, of all members together
    std::uint32_t evalBatch = 1;     // samples of an evaluation batch
    std::uint32_t microBatches = 1;  // M: a micro-batch has at most ceil(batch / M) samples
    // One member takes part at a time, and its batches are divided as those of a single client.
    bool isRelay = false;
  };
  // The roster has training samples of members that are present. Throws UsageError "bad-cohort"
  // unless each attendance has some, and they are in order.
  JointPlan(const Options& options, Roster roster);

  const Roster& roster() const { return roster_; }
  // Training samples of the members that are present in the first step; in a relay, of the one
  // whose turn it is.
  std::uint32_t samples() const { return samples_; }
  // The first training sample of a member among those of all, which are numbered member by member.
  std::uint32_t firstSampleOf(std::uint32_t member) const { return train_.first[member]; }

  // The members that are present from the last attendance on, in their order.
  const std::vector<std::uint32_t>& present() const { return roster_.attendance.back().present; }

  std::uint64_t epochOf(std::uint64_t step) const;      // from 1
  std::uint64_t lastStepOf(std::uint64_t epoch) const;  // if nobody else leaves or joins

  // How a batch is divided: the samples of each member that is present, in their order in the
  // batch, member by member. Evaluation batches are numbered over the whole run; without evaluation
  // samples, each is empty. Any thread.
  Division division(Phase phase, std::uint64_t step) const;

  // A pass over the samples of one member, or of all (nullopt), in batches.
  struct Pass {
    std::vector<std::uint32_t> order;  // samples, numbered within the member, or among all
    std::vector<std::uint32_t> sizes;  // samples per batch; may be 0
  };
  Pass trainingPass(std::optional<std::uint32_t> member, std::uint64_t epoch) const;
  // Of the members that are present from the last attendance on.
  Pass evaluationPass(std::optional<std::uint32_t> member) const;

 private:
  // The batches of a pass.
  struct Batches {
    struct Batch {
      std::uint32_t begin, end;  // in `order`
      std::uint32_t attendance;  // its number
    };
    std::vector<std::uint32_t> order;  // samples of all members that are present
    std::vector<Batch> all;

    std::span<std::uint32_t> samplesOf(const Batch& batch) {
      return std::span(order).subspan(batch.begin, batch.end - batch.begin);
    }
  };
  // The samples of a kind, numbered member by member.
  struct Set {
    Set(const std::vector<std::uint32_t>& byMember, std::uint32_t batchSize, std::uint32_t m);
    std::uint32_t memberOf(std::uint32_t sample) const;
    // Those of these members, in their order.
    std::vector<std::uint32_t> samplesOf(const std::vector<std::uint32_t>& members) const;
    // Adds the batches of these samples.
    void cut(const std::vector<std::uint32_t>& samples, std::size_t attendance,
             Batches& batches) const;

    std::vector<std::uint32_t> first;  // of each member, then the number of samples
    std::uint32_t batch = 1;
    std::uint32_t largest = 1;  // samples of a micro-batch
  };
  using Divisions = std::vector<Division>;  // of the batches of a pass
  // Epochs in which nobody leaves or joins; or a single one in which somebody does.
  struct Stretch {
    std::uint64_t firstEpoch = 1;
    std::uint64_t firstStep = 1;
    std::uint64_t steps = 0;     // per epoch
    std::size_t attendance = 0;  // at its first step
    bool isChanged = false;      // somebody leaves, or comes back, in this epoch
  };

  void check(std::size_t attendance) const;
  void plan(std::size_t attendance);
  const Stretch& stretchOf(std::uint64_t epoch) const;
  const Stretch& stretchAt(std::uint64_t step) const;
  std::uint64_t batchesOf(std::size_t attendance) const;  // of an epoch without a change
  Batches trainingBatches(std::uint64_t epoch) const;
  Batches evaluationBatches(std::size_t attendance) const;
  Divisions divide(const Set& set, Batches batches) const;
  // Those of an epoch, or of an evaluation.
  const Divisions& known(Phase phase, std::uint64_t number) const;
  Pass passOf(const Set& set, Batches batches, std::optional<std::uint32_t> member) const;

  const Options options_;
  const Roster roster_;
  const Set train_, evaluation_;
  std::uint32_t samples_ = 0;
  std::vector<Stretch> stretches_;  // in order
  mutable std::mutex mutex_;
  // By phase, and by epoch or attendance.
  mutable std::map<std::pair<Phase, std::uint64_t>, Divisions> known_;
};

// The most micro-batches that a batch of a cohort has: each member but one may add one that is not
// full.
constexpr std::uint32_t maxMicroBatches(std::uint32_t microBatches, std::uint32_t members) {
  return microBatches + members - 1;
}

}  // namespace cleave
