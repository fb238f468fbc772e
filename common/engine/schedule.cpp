#include "common/engine/schedule.h"
#include "common/core/names.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <tuple>
#include <vector>

namespace cleave {
namespace {

using Picked = std::optional<ActionKind>;

constexpr std::array<std::string_view, kActionKinds> kActionNames = {
    "HeadForward", "TailStep", "HeadBackward", "BodyForward", "BodyBackward",
    "BodyWeights", "Report",   "Decide",       "Update",      "Export",
    "Import",      "Snapshot", "Restore",      "Reduce",      "Sum"};

Picked firstReady(const ReadyKinds& ready, std::initializer_list<ActionKind> order) {
  for (const ActionKind kind : order) {
    if (ready[kind]) return kind;
  }
  return std::nullopt;
}

int firstComeFirstServed(Flow, const Place&) { return 0; }
std::uint32_t allInFlight(std::uint32_t microBatches) { return microBatches; }
std::uint32_t oneInFlight(std::uint32_t) { return 1; }

// priority: the action that unlocks the most work runs first. A tail step gives the server a
// backward. A body's forward leads to a tail step, but its backward leads only to the last action
// of its micro-batch.
//
// zb: the same order, but the body's backward is split (Qi et al., "Zero Bubble Pipeline
// Parallelism", 2024). Nothing waits for the gradients of the weights, so they are computed when
// there is nothing else to do. What autograd saved for a micro-batch is kept until its BodyWeights,
// and the client is not informed when those are done, so all micro-batches may be in flight.
Picked pickByPriority(const ReadyKinds& ready, const StageState& state) {
  if (state.hop == 0) {
    return firstReady(ready,
                      {ActionKind::tailStep, ActionKind::headForward, ActionKind::headBackward});
  }
  return firstReady(ready,
                    {ActionKind::bodyBackward, ActionKind::bodyForward, ActionKind::bodyWeights});
}

int unlockingFirst(Flow flow, const Place& body) { return flow.cut == body.lastCut ? 0 : 1; }

// gpipe: all forwards, then all backwards (Huang et al., 2019), M = 3:
//
//   client  F0 F1 F2 T0 T1 T2          H0 H1 H2       F HeadForward  T TailStep  H HeadBackward
//   server     F0 F1 F2    B0 B1 B2                   F BodyForward  B BodyBackward
Picked pickInBlocks(const ReadyKinds& ready, const StageState& state) {
  const auto blocks =
      state.hop == 0
          ? std::vector{ActionKind::headForward, ActionKind::tailStep, ActionKind::headBackward}
          : std::vector{ActionKind::bodyForward, ActionKind::bodyBackward};
  for (const ActionKind kind : blocks) {
    if (state.next(kind) == state.microBatches) continue;
    return ready[kind] ? Picked(kind) : std::nullopt;
  }
  return std::nullopt;
}

// 1f1b for the U-shaped split: after a warm-up, each device alternates one forward and one backward
// (Narayanan et al., PipeDream, SOSP'19). Cycle j of the client is TailStep(j), HeadBackward(j -
// 1), HeadForward(j - 1 + W), so that W micro-batches are in flight. Cycle j of hop k is
// BodyBackward(j), BodyForward(j + w) with w = max(1, W - k). M = 5, W = 3, one server:
//
//   cycle    warm-up    0       1          2          3       4       5
//   client   F0 F1 F2   T0      T1 H0 F3   T2 H1 F4   T3 H2   T4 H3   H4
//   server   F0 F1      B0 F2   B1 F3      B2 F4      B3      B4
//
// A device runs the next action of its row, waiting for it if necessary. With W = 1 and M > 1, T1
// would wait for F1, which comes later in the same row. The minimum of W is therefore 2.
using Turn = std::tuple<std::int64_t, int, std::uint32_t>;  // cycle, slot in the cycle, i

Turn turnOf(ActionKind kind, std::uint32_t i, const StageState& state) {
  const std::int64_t index = i;
  const std::int64_t inFlight = state.inFlight;
  const std::int64_t bodyWarmUp = std::max<std::int64_t>(1, inFlight - state.hop);
  constexpr std::int64_t kWarmUp = -1;
  switch (kind) {
    case ActionKind::headForward:
      return index < inFlight ? Turn(kWarmUp, 0, i) : Turn(index - inFlight + 1, 2, i);
    case ActionKind::tailStep:
      return {index, 0, i};
    case ActionKind::headBackward:
      return {index + 1, 1, i};
    case ActionKind::bodyForward:
      return index < bodyWarmUp ? Turn(kWarmUp, 0, i) : Turn(index - bodyWarmUp, 1, i);
    default:
      return {index, 0, i};  // bodyBackward
  }
}

Picked pickOneForwardOneBackward(const ReadyKinds& ready, const StageState& state) {
  constexpr ActionKind kKinds[] = {ActionKind::headForward, ActionKind::tailStep,
                                   ActionKind::headBackward, ActionKind::bodyForward,
                                   ActionKind::bodyBackward};
  Picked first;
  Turn firstTurn;
  for (const ActionKind kind : kKinds) {
    if (!state.runs[indexOf(kind)] || state.next(kind) == state.microBatches) continue;
    const Turn turn = turnOf(kind, state.next(kind), state);
    if (!first || turn < firstTurn) {
      first = kind;
      firstTurn = turn;
    }
  }
  return first && ready[*first] ? first : std::nullopt;
}

std::uint32_t twoInFlight(std::uint32_t microBatches) { return std::min(2u, microBatches); }
std::uint32_t fourInFlight(std::uint32_t microBatches) { return std::min(4u, microBatches); }

constexpr Schedule kSchedules[] = {
    {"priority", "runs first what unblocks the most work; urgent tensors are sent first (default)",
     pickByPriority, unlockingFirst, oneInFlight, allInFlight},
    {"gpipe", "all forwards, then all backwards", pickInBlocks, firstComeFirstServed, allInFlight,
     allInFlight, false, /*overlapsSteps=*/false, /*isStrict=*/true},
    {"1f1b", "alternately one forward and one backward, with few micro-batches in flight",
     pickOneForwardOneBackward, firstComeFirstServed, twoInFlight, fourInFlight, false, true,
     /*isStrict=*/true},
    {"zb", "like priority, but servers compute the gradients of their weights last", pickByPriority,
     unlockingFirst, allInFlight, allInFlight, true},
};

}  // namespace

std::string_view actionName(ActionKind kind) { return kActionNames[indexOf(kind)]; }

bool ReadyKinds::any() const {
  return std::any_of(ready.begin(), ready.end(), [](bool value) { return value; });
}

std::span<const Schedule> scheduleTable() { return kSchedules; }

const Schedule& findSchedule(std::string_view name) {
  return findByName(kSchedules, name, "unknown-schedule", "a schedule");
}

bool supportsStaleness(const Schedule& schedule, std::uint32_t replicas) {
  return schedule.overlapsSteps && (replicas == 1 || !schedule.isStrict);
}

std::uint32_t resolveInFlight(const Schedule& schedule, std::uint32_t configured,
                              std::uint32_t microBatches) {
  const std::uint32_t inFlight =
      configured == 0 ? schedule.defaultInFlight(microBatches) : configured;
  const std::uint32_t min = schedule.minInFlight(microBatches);
  if (inFlight < min || inFlight > microBatches) {
    throw UsageError(
        "bad-in-flight",
        std::to_string(inFlight) + " micro-batches in flight do not suit the schedule " +
            std::string(schedule.name) + " with " + std::to_string(microBatches) + " micro-batches",
        "give a number in " + std::to_string(min) + "…" + std::to_string(microBatches) +
            ", or 0 for the schedule's default");
  }
  return inFlight;
}

}  // namespace cleave
