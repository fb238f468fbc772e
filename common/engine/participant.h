// A server's engine: runs one body, reports its gradients, and applies the steps that the client
// decides.
//
// clang-format off
//   from        to          when                                     action, what is sent
//   idle        running     the first tensor of the next batch
//   running     idle        eval: every action is complete
//   running                 train: every action is complete,         Reduce
//                           and the body has replicas
//   running                 train: every action, and the             Report
//                           reduction if there is one, is complete
//   running                 Report is complete                       BodyDone
//   running     decided     Step, after BodyDone
//   decided     updating    immediately                              Update
//   updating    idle        Update is complete                       link: commit; StepOk
//   updating    updated     the same, if a checkpoint was requested  link: commit; StepOk
//   updated     copying     immediately                              Snapshot
//   copying     idle        Snapshot is complete
// clang-format on
//
// With staleness D, the table describes the oldest step, and `idle` means that no step is in
// progress; the actions and reports of up to D later steps run at the same time. Reductions and
// reports are made in the order of the steps, one at a time.
//
// From `decided` to the end of the update and its snapshot, every other message waits, because
// messages after a Step refer to the updated weights. Waiting messages are handled in the order of
// their arrival.
//
// Activations that another server sends over a direct link, or another member of a cohort, may
// overtake the Step. They wait until their batch may begin.
//
// The first server of a cohort adds the gradients of the members' heads and tails: it collects the
// parts of all members, in any order, then runs Sum and sends sums/client to all of them. It passes
// each Step from member 0 on to the others.
//
// Two more actions run outside of this table. Once, before the first batch, initial weights are
// imported or a checkpoint is restored. A Fetch of weights/body is answered between batches, and,
// like one of grads/body, between BodyDone and Step of the oldest step.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "common/engine/engine.h"

namespace cleave {

class Participant : public Engine {
 public:
  // `links`: to the client, or to each member of the cohort. BodyDone and StepOk are sent on all of
  // them. A micro-batch's tensors use the link of the member whose samples it has.
  Participant(const EngineOptions& options, const Place& place,
              std::vector<std::shared_ptr<EngineLink>> links);

  void receive(std::size_t peer, Message message) override;
  bool isReportNext() const override;
  void restore(const EngineState& state) override;

  // Whether the body has its weights: received, restored from a checkpoint, or initialized here.
  bool weightsInPlace() const { return weights_ == Weights::inPlace; }

 private:
  enum class State { idle, running, decided, updating, updated, copying };
  enum class Weights { expected, arrived, importing, inPlace };
  // Of the step after the last one whose BodyDone was sent.
  enum class Reporting { none, reducing, reduced, reporting };

  void dispatch(std::size_t peer, Message&& message);
  void receiveTensor(std::size_t from, TensorMessage&& message);
  void keepUntilItsBatch(std::size_t from, TensorMessage&& message);
  void checkOfMember(std::size_t from, const TensorMessage& message) const;
  bool mayTake(const TensorMessage& message) const;
  void startBatchOf(const TensorMessage& message);
  void receiveDecision(const StepDecision& decision);
  void receiveFetch(std::size_t from, const Fetch& fetch);
  bool isOfStep(const Fetch& fetch) const;
  void receiveWeights(Blob&& blob);
  void receivePart(std::size_t from, Blob&& part);
  void receiveResume(std::size_t from, const Resume& resume);
  bool isUpdatePending() const { return state_ >= State::decided; }
  void endOldest();

  std::optional<Work> nextWork() override;
  std::optional<Work> exportWork();
  bool isSumNext() const;
  Work sumWork();
  Work reportWork();
  void finish(Work&& work, Result&& result, double seconds) override;
  void sendReport(const BatchSeconds& batch, const GradientReport& report);

  const Place place_;
  const std::vector<std::shared_ptr<EngineLink>> links_;
  State state_ = State::idle;
  std::uint64_t reported_ = 0;  // the last step whose BodyDone was sent
  Reporting reporting_ = Reporting::none;
  StepDecision decision_;  // the last one
  double updateSeconds_ = 0;
  struct Deferred {
    std::size_t peer;
    Message message;
  };
  std::deque<Deferred> deferred_;
  // With an edge before the body, and in a cohort: activations whose batch may not begin yet. All
  // pass through it. With the sender of each.
  std::deque<std::pair<std::size_t, TensorMessage>> early_;
  std::uint64_t latestStep_ = 0;  // the latest training step of those

  std::vector<std::optional<Blob>> parts_;  // by link, of the sum that is made next
  Weights weights_;
  Input source_;  // the Blob or Resume that has arrived and is not yet imported or restored
  std::set<std::size_t> resumed_;  // the links on which a Resume has arrived
  bool isExporting_ = false;       // the answer to the first of them is being made
  // The Fetches that are not answered, oldest first, and the sender of each. One per link.
  std::deque<std::pair<std::size_t, Fetch>> fetches_;
};

}  // namespace cleave
