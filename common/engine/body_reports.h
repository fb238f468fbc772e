// What the bodies have reported on each step, and which steps they have applied. Replicas of a body
// add the same gradients in the same order, so what they report must be bit-identical.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "common/engine/messages.h"
#include "common/topology/division.h"

namespace cleave {

class BodyReports {
 public:
  // `peers`: in model order, and the replicas of a body in rank order.
  explicit BodyReports(const std::vector<Replica>& peers);
  // All peers have been restored to this step.
  void restore(std::uint64_t step);

  // Requires the step after lastReported().
  void reported(std::size_t peer, const BodyDone& done);
  std::uint64_t lastReported(std::size_t peer) const { return peers_[peer].reported; }
  // The peer's oldest report that was not taken; null: none.
  const BodyDone* next(std::size_t peer) const;
  // Whether all peers have reported on the next step.
  bool areComplete() const;
  // Takes the reports on the next step, one per body: the seconds of replicas are added, as those
  // of their micro-batches are. Throws RunError "replicas-differ".
  std::vector<BodyDone> take();
  // The peer's report that was taken last; empty after forgetTaken().
  const std::optional<BodyDone>& taken(std::size_t peer) const { return peers_[peer].taken; }
  void forgetTaken();

  // Throws RunError "replicas-differ" if replicas have other weights after the step.
  void applied(std::size_t peer, const StepOk& ok);
  std::uint64_t lastApplied(std::size_t peer) const { return peers_[peer].applied; }
  std::uint64_t appliedByAll() const;

 private:
  struct Peer {
    Replica replica;
    std::deque<BodyDone> done;
    std::optional<BodyDone> taken;
    std::uint64_t reported = 0, applied = 0;
    std::deque<StepOk> updates;  // of a replica: not compared with the others' yet
  };

  void checkSameWeights(std::size_t first);

  std::vector<Peer> peers_;
};

}  // namespace cleave
