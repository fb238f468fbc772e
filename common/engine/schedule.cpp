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

// 1f1b: after a warm-up, each server alternates one backward and one forward (Narayanan et al.,
// PipeDream, SOSP'19), and waits for the next action of its row if necessary. Here the pipeline
// begins and ends at the client. A round crosses S + 1 hops: head, S bodies, tail. The W
// micro-batches in flight are spread evenly over them, W / (S + 1) per hop: with the default of 2,
// one is computed while the other one crosses the link ("eager" 1F1B: Zhuang et al., 2022). The
// warm-up of body k is those of the hops from body k to the tail, and its cycle j is
// BodyBackward(j), BodyForward(j + warm-up).
//
// Gradients return to the head S hops later. So cycle j of the client is TailStep(j),
// HeadBackward(j - S), HeadForward(j - S + W). It runs the first one of these that is ready: if it
// waited, servers would wait too. M = 6, W = 4, one server, each action takes a second:
//
//   client   F0 F1 F2 F3 T0 T1 H0 F4 T2 H1 F5 T3 H2 T4 H3 T5 H4 H5
//   server   F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5
//
// With W = 1 and M > 1, a server would wait for BodyForward(1) before BodyBackward(0). The minimum
// of W is therefore 2.
using Turn = std::tuple<std::int64_t, int, std::uint32_t>;  // cycle, slot in the cycle, i

constexpr std::uint32_t kPerHop = 2;

std::int64_t warmUpOf(const StageState& state) {
  const std::uint32_t hops = state.bodies + 1;
  // If a batch runs alone and all of it is in flight, a longer warm-up never waits for the client.
  const bool isWhole = state.isAlone && state.inFlight == state.microBatches;
  const std::uint32_t spread = isWhole ? std::max(state.inFlight, kPerHop * hops) : state.inFlight;
  const std::uint32_t perHop = std::max(1u, spread / hops);
  return std::min(perHop * (hops - state.hop), state.inFlight);
}

Turn turnOf(ActionKind kind, std::uint32_t i, const StageState& state) {
  const std::int64_t index = i;
  const std::int64_t behind = state.bodies;
  const auto forward = [&](std::int64_t warmUp, std::int64_t first, int slot) {
    return index < warmUp ? Turn(-1, 0, i) : Turn(index - warmUp + first, slot, i);
  };
  switch (kind) {
    case ActionKind::headForward:
      return forward(state.inFlight, behind, 2);
    case ActionKind::headBackward:
      return {index + behind, 1, i};
    case ActionKind::bodyForward:
      return forward(warmUpOf(state), 0, 1);
    default:
      return {index, 0, i};  // tailStep, bodyBackward
  }
}

Picked pickOneForwardOneBackward(const ReadyKinds& ready, const StageState& state) {
  constexpr ActionKind kKinds[] = {ActionKind::headForward, ActionKind::tailStep,
                                   ActionKind::headBackward, ActionKind::bodyForward,
                                   ActionKind::bodyBackward};
  const bool isClient = state.hop == 0;
  Picked first;
  Turn firstTurn;
  for (const ActionKind kind : kKinds) {
    const bool isLeft = state.runs[indexOf(kind)] && state.next(kind) < state.microBatches;
    if (isClient ? !ready[kind] : !isLeft) continue;
    const Turn turn = turnOf(kind, state.next(kind), state);
    if (!first || turn < firstTurn) {
      first = kind;
      firstTurn = turn;
    }
  }
  return first && ready[*first] ? first : std::nullopt;
}

constexpr Schedule kSchedules[] = {
    {"priority", "runs first what unblocks the most work; urgent tensors are sent first (default)",
     pickByPriority, unlockingFirst, /*min=*/1},
    {"gpipe", "all forwards, then all backwards", pickInBlocks, firstComeFirstServed, 0, 0, false,
     /*overlapsSteps=*/false, /*isStrict=*/true},
    {"1f1b", "alternately one forward and one backward, with few micro-batches in flight",
     pickOneForwardOneBackward, firstComeFirstServed, /*min=*/2, kPerHop, false, true,
     /*isStrict=*/true},
    {"zb", "like priority, but servers compute the gradients of their weights last", pickByPriority,
     unlockingFirst, 0, 0, true},
};

}  // namespace

std::string_view actionName(ActionKind kind) { return kActionNames[indexOf(kind)]; }

bool ReadyKinds::any() const {
  return std::any_of(ready.begin(), ready.end(), [](bool value) { return value; });
}

std::uint32_t Schedule::minInFlight(std::uint32_t microBatches) const {
  return min == 0 ? microBatches : std::min(min, microBatches);
}

std::uint32_t Schedule::defaultInFlight(std::uint32_t microBatches, std::uint32_t bodies) const {
  return perHop == 0 ? microBatches : std::min(perHop * (bodies + 1), microBatches);
}

std::span<const Schedule> scheduleTable() { return kSchedules; }

const Schedule& findSchedule(std::string_view name) {
  return findByName(kSchedules, name, "unknown-schedule", "a schedule");
}

bool supportsStaleness(const Schedule& schedule, std::uint32_t replicas) {
  return schedule.overlapsSteps && (replicas == 1 || !schedule.isStrict);
}

std::uint32_t resolveInFlight(const Schedule& schedule, std::uint32_t configured,
                              std::uint32_t microBatches, std::uint32_t bodies) {
  const std::uint32_t inFlight =
      configured == 0 ? schedule.defaultInFlight(microBatches, bodies) : configured;
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
