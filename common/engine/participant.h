// A server's engine: runs one body, reports its gradients, and applies the steps that the client
// decides.
//
// clang-format off
//   from        to          when                                     action, what is sent
//   idle        running     the first tensor of the next batch
//   running     idle        eval: every action is complete
//   running     reporting   train: every action is complete          Report
//   reporting   reported    Report is complete                       BodyDone
//   reported    decided     Step
//   decided     updating    immediately                              Update
//   updating    idle        Update is complete                       link: commit; StepOk
//   updating    updated     the same, if a checkpoint was requested  link: commit; StepOk
//   updated     copying     immediately                              Snapshot
//   copying     idle        Snapshot is complete
// clang-format on
//
// From `decided` to the end of the update and of its snapshot, every other message waits: whatever
// follows a Step is meant for the updated weights. Messages that arrive later queue behind those
// that waited.
//
// In addition, in this order and before the actions of the batch: initial weights are imported, or
// a checkpoint is restored, once, before anything else; a Fetch is answered, of weights/body
// between batches, of grads/body in `reported`.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "common/engine/engine.h"

namespace cleave {

class Participant : public Engine {
 public:
  // `links`: to the clients whose micro-batches this body computes, at least one.
  // BodyDone and StepOk go to all; the first one's client decides. `linkOf`: the link of a
  // micro-batch, the same for all its tensors; empty: the first.
  Participant(const EngineOptions& options, const Place& place,
              std::vector<std::shared_ptr<EngineLink>> links,
              std::function<std::size_t(std::uint32_t i)> linkOf = nullptr);

  void receive(std::size_t peer, Message message) override;
  bool batchDone() const override { return state_ == State::idle; }

  // Whether the body has its initial weights, either received or its own.
  bool weightsInPlace() const { return weights_ == Weights::inPlace; }

 private:
  enum class State { idle, running, reporting, reported, decided, updating, updated, copying };
  enum class Weights { expected, arrived, importing, inPlace };
  enum class Export { none, requested, running };

  void dispatch(std::size_t peer, Message&& message);
  void receiveTensor(std::size_t from, TensorMessage&& message);
  void startBatchOf(const TensorMessage& message);
  void receiveDecision(const StepDecision& decision);
  void receiveFetch(std::size_t from, const Fetch& fetch);
  void receiveWeights(Blob&& blob);
  void receiveResume(const Resume& resume);
  bool isUpdatePending() const { return state_ >= State::decided; }

  std::optional<Work> nextWork() override;
  Work exportWork();
  void finish(Work&& work, Result&& result, double seconds) override;
  void sendReport(const GradientReport& report);

  const Place place_;
  const std::vector<std::shared_ptr<EngineLink>> links_;
  const std::function<std::size_t(std::uint32_t i)> linkOf_;
  State state_ = State::idle;
  StepDecision decision_;  // the last one
  double updateSeconds_ = 0;
  struct Deferred {
    std::size_t peer;
    Message message;
  };
  std::deque<Deferred> deferred_;

  Weights weights_;
  Input source_;  // source of the weights, a Blob or Resume: arrived, not yet imported
  Export export_ = Export::none;
  Fetch fetch_;  // the one being answered, and the index of its sender
  std::size_t fetcher_ = 0;
};

}  // namespace cleave
