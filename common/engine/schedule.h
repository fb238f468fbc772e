// Schedules: which ready action a stage runs next, and which tensor the link sends first. They are
// pure functions in a table; a new schedule is one row. Both the engine and the simulator call
// these rows, so predictions cannot diverge from runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "common/core/error.h"
#include "common/topology/key.h"

namespace cleave {

enum class Role : std::uint8_t { client, server };

// The kinds of actions of a stage. The first five work on micro-batches and are ordered by the
// schedule. The others run as soon as they are ready, since nothing else in the batch can run then.
enum class ActionKind : std::uint8_t {
  headForward,
  tailStep,  // forward, loss and backward of the tail in one
  headBackward,
  bodyForward,
  bodyBackward,
  report,  // server: makes BodyDone from the body's gradients
  decide,  // client: decides the step, from BodyDone and its own gradients
  update,
  exportBlob,  // server: answers a Fetch
  importBlob,  // server: puts the initial weights in place
  snapshot,    // server: copies its state for a checkpoint
  restore,     // server: puts the state of a checkpoint in place
};
inline constexpr std::size_t kScheduledKinds = 5;
inline constexpr std::size_t kActionKinds = 12;
// Index into arrays by kind.
constexpr std::size_t indexOf(ActionKind kind) { return static_cast<std::size_t>(kind); }
std::string_view actionName(ActionKind kind);  // such as "HeadForward"

// Per scheduled kind: whether its next micro-batch is ready. Within a kind, micro-batches always
// run in order, so at most one action per kind is ready.
struct ReadyKinds {
  std::array<bool, kScheduledKinds> ready{};
  bool operator[](ActionKind kind) const { return ready[indexOf(kind)]; }
  bool any() const;
};

struct StageState {
  int hop = 0;                               // 0: the client; k: body k - 1
  std::array<bool, kScheduledKinds> runs{};  // the kinds that this stage runs in this batch
  std::uint32_t microBatches = 0;            // M of this batch
  std::uint32_t inFlight = 0;                // maximum at a time, W
  // Actions started in this batch, by scheduled kind; equals the i of the kind's next action.
  std::array<std::uint32_t, kScheduledKinds> started{};

  std::uint32_t next(ActionKind kind) const { return started[indexOf(kind)]; }
};

struct Schedule {
  std::string_view name;
  std::string_view description;  // one line
  // The kind to run now, one of the ready ones. Nothing: wait, even if something is ready.
  std::optional<ActionKind> (*pick)(const ReadyKinds& ready, const StageState& state);
  // Among the tensors waiting on the link to a body, the one with the lowest value is sent first;
  // on a tie, the first to arrive.
  int (*linkPriority)(Flow flow, const Place& body);
  // Micro-batches in flight for a batch of M; fewer than the minimum would deadlock.
  std::uint32_t (*minInFlight)(std::uint32_t microBatches);
  std::uint32_t (*defaultInFlight)(std::uint32_t microBatches);
};

std::span<const Schedule> scheduleTable();
// Throws UsageError "unknown-schedule" with the nearest known name.
const Schedule& findSchedule(std::string_view name);
// A run's number of micro-batches in flight: `configured`, or the schedule's default if that is 0.
// Throws UsageError "bad-in-flight" unless minimum <= W <= M.
std::uint32_t resolveInFlight(const Schedule& schedule, std::uint32_t configured,
                              std::uint32_t microBatches);
// Maximum messages that may wait on a side, and tensors that the peer may leave unacknowledged
// (Received): more than a correct peer ever causes. Part of the protocol.
constexpr std::size_t maxWaiting(std::uint32_t inFlight) { return std::size_t{8} * inFlight + 64; }

}  // namespace cleave
