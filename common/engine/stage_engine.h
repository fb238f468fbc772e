// The order of one stage's actions: which are ready, and which one the schedule runs next. It has
// no notion of peers or roles: a stage is described by rows, and the same class runs in the client,
// in each server, and in the simulator. One thread at a time.
//
// A stage works on one batch, or, in a run with staleness, on several consecutive training batches.
// Their micro-batches form one sequence, in which i counts from the first micro-batch of the oldest
// batch. Actions of one kind run in the order of this sequence.
//
// clang-format off
//   client   HeadForward(i)                     -> activation/0
//            activation/K -> TailStep(i)        -> gradient/K
//            gradient/0   -> HeadBackward(i)
//   body b   activation/b -> BodyForward(i)     -> activation/b+1
//            gradient/b+1 -> BodyBackward(i)    -> gradient/b
//            BodyBackward(i) is done -> BodyWeights(i), if the schedule splits the backward
//   eval     rows with a gradient as input, and BodyWeights, do not run; no gradients are sent
// clang-format on
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "common/codec/tensor.h"
#include "common/engine/schedule.h"
#include "common/topology/flow.h"

namespace cleave {

struct StageRow {
  ActionKind kind = ActionKind::headForward;
  std::vector<Flow> inputs;   // all must have arrived; empty: ready from the start
  std::vector<Flow> outputs;  // the flows that carry its result
  // If set, the stage's action of this kind, with the same i, must be done before this one starts.
  std::optional<ActionKind> after = {};
};

struct StageRows {
  std::uint32_t hop = 0;     // 0: the client; k: body k - 1
  std::uint32_t bodies = 1;  // number of bodies in the row
  std::vector<StageRow> rows;
  // If set, at most the negotiated number of micro-batches may be in flight. A micro-batch is in
  // flight from the start of its action of this kind until the start of its action of the phase's
  // last kind, in the order of `rows`.
  std::optional<ActionKind> opens;
};
// Requires consecutive bodies: each begins at the cut where the previous one ends.
StageRows clientRows(const std::vector<Place>& bodies);
// `bodies`: their number in the row. `splitsBackward`: as Schedule::splitsBackward. A body that
// sends no gradients does not split.
StageRows bodyRows(const Place& place, std::uint32_t bodies, bool splitsBackward = false);

class StageEngine {
 public:
  using Pick = std::function<std::optional<ActionKind>(const ReadyKinds&, const StageState&)>;

  // `inFlight`: W as negotiated. `overlapsSteps`: whether append() may be called in training.
  StageEngine(StageRows rows, Pick pick, std::uint32_t inFlight, bool overlapsSteps);

  // Starts a batch of M micro-batches. Drops the state of all batches before it.
  void begin(Phase phase, std::uint32_t microBatches);
  // Adds a batch of the same phase behind the ones that are in progress.
  void append(std::uint32_t microBatches);
  // Drops the oldest batch, of M micro-batches, all of whose actions are done. Micro-batch M
  // becomes micro-batch 0.
  void dropFirst(std::uint32_t microBatches);

  bool isInput(Flow flow) const { return inputs_.find(flow) != nullptr; }
  bool hasArrived(Flow flow, std::uint32_t i) const { return inputs_.at(flow).arrived[i]; }
  // Requires isInput(), !hasArrived(), and that a batch in progress has the micro-batch i.
  void arrived(Flow flow, std::uint32_t i, Payload payload = {});

  struct Action {
    ActionKind kind = ActionKind::headForward;
    std::uint32_t i = 0;
    TensorBundle inputs;
  };
  // The kind of action that next() would return.
  std::optional<ActionKind> pick() const;
  // Returns the action to run now; nullopt: wait for an input. Returns each action once.
  std::optional<Action> next();
  // An action of this kind is done. Actions of one kind complete in order.
  void completed(ActionKind kind) { ++completed_[indexOf(kind)]; }

  // Whether the stage has actions of this kind.
  bool has(ActionKind kind) const;
  // The flows that carry the kind's result in this phase.
  std::vector<Flow> outputsOf(ActionKind kind) const;
  std::uint32_t startedOf(ActionKind kind) const { return started_[indexOf(kind)]; }
  std::uint32_t completedOf(ActionKind kind) const { return completed_[indexOf(kind)]; }
  // Those whose action of this kind has not started.
  std::uint32_t leftOf(ActionKind kind) const { return microBatches_ - startedOf(kind); }
  // Whether every action is done; true before the first batch.
  bool isDone() const { return isDone(microBatches_); }
  // Whether every action of the first micro-batches is done.
  bool isDone(std::uint32_t microBatches) const;

 private:
  struct Input {
    std::vector<bool> arrived;      // by micro-batch
    std::vector<Payload> payloads;  // arrived, not yet passed to an action
  };

  bool runs(const StageRow& row) const;
  const StageRow& rowOf(ActionKind kind) const;
  bool isReady(const StageRow& row) const;

  const StageRows stage_;
  const Pick pick_;
  const std::uint32_t inFlight_;
  const bool overlapsSteps_;
  Phase phase_ = Phase::train;
  std::uint32_t microBatches_ = 0;  // of all batches in progress
  // Micro-batches that were dropped since begin(). Schedules see counts that include them.
  std::uint32_t dropped_ = 0;
  std::array<std::uint32_t, kScheduledKinds> started_{};
  std::array<std::uint32_t, kScheduledKinds> completed_{};
  FlowMap<Input> inputs_;
};

// Of stages that one device computes, and that may continue, the one to continue with. An older
// batch goes first; then a backward, because a client waits for it, and it frees memory;
// BodyWeights, for which nobody waits, last. Of equal ones, the stage with the most left to do.
// nullopt: all wait. `batchOf`: the number of the batch of a stage's next action of this kind;
// null: there is only one.
std::optional<std::size_t> nextOf(
    const std::deque<StageEngine>& stages,
    const std::function<std::uint32_t(std::size_t stage, ActionKind kind)>& batchOf = nullptr);

}  // namespace cleave
