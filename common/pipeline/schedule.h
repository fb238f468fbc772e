// Schedules: which ready action a stage runs next, and which tensor the link sends first. Pure
// functions in a table; a new schedule is one row. Whatever runs or predicts a pipeline calls these
// rows, so that the two cannot drift apart.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "common/core/error.h"
#include "common/core/key.h"

namespace cleave {

enum class Role : std::uint8_t { client, server };

// What a stage can do. The first five work on micro-batches and are the schedule's to order; the
// others run as soon as they are ready, since nothing else of the batch can.
enum class ActionKind : std::uint8_t {
  headForward,
  tailStep,  // forward, loss and backward of the tail in one
  headBackward,
  bodyForward,
  bodyBackward,
  report,  // server: what BodyDone says of the body's gradients
  decide,  // client: the step's decision, from BodyDone and its own gradients
  update,
  exportBlob,  // server: answers a Fetch
  importBlob,  // server: puts the initial weights in place
};
inline constexpr std::size_t kScheduledKinds = 5;
inline constexpr std::size_t kActionKinds = 10;
// For arrays by kind.
constexpr std::size_t indexOf(ActionKind kind) { return static_cast<std::size_t>(kind); }
std::string_view actionName(ActionKind kind);  // "HeadForward"

// Per scheduled kind: the flow it consumes and the flow it produces; of the others: nothing.
struct KindFlows {
  std::optional<Flow> input;
  std::optional<Flow> output;
};
KindFlows flowsOf(ActionKind kind);

// One bit a scheduled kind: its next micro-batch is ready. Within a kind, micro-batches always go
// in order, so that there is at most one ready action a kind.
struct ReadyKinds {
  std::array<bool, kScheduledKinds> ready{};
  bool operator[](ActionKind kind) const { return ready[indexOf(kind)]; }
  bool any() const;
};

struct StageState {
  Role role = Role::client;
  Phase phase = Phase::train;
  std::uint32_t microBatches = 0;  // M of this batch
  std::uint32_t inFlight = 0;      // most at a time, W
  // How many actions of each scheduled kind have been started in this batch: the i of the next one.
  std::array<std::uint32_t, kScheduledKinds> started{};

  std::uint32_t next(ActionKind kind) const { return started[indexOf(kind)]; }
};

struct Schedule {
  std::string_view name;
  std::string_view description;  // one line
  // The kind to run now, one of the ready ones; nothing: wait, although something may be ready.
  std::optional<ActionKind> (*pick)(const ReadyKinds& ready, const StageState& state);
  // Of tensors that wait on a link, the one with the least value goes first; equal: first come,
  // first served.
  int (*linkPriority)(Flow flow);
  // Micro-batches in flight, for a batch of M: fewer than the least would deadlock.
  std::uint32_t (*leastInFlight)(std::uint32_t microBatches);
  std::uint32_t (*defaultInFlight)(std::uint32_t microBatches);
};

std::span<const Schedule> scheduleTable();
// Throws UsageError "unknown-schedule" with the nearest known name.
const Schedule& findSchedule(std::string_view name);
// The micro-batches in flight of a run: `configured`, or the schedule's default where it is 0.
// Throws UsageError "bad-in-flight" unless least <= W <= M.
std::uint32_t resolveInFlight(const Schedule& schedule, std::uint32_t configured,
                              std::uint32_t microBatches);

}  // namespace cleave
