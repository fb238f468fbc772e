// Schedules: which ready action a stage runs next, and which tensor the link sends first. They are
// pure functions in a table; to add a schedule, add a row. The engine and the simulator call the
// same functions, so predictions use the same order as runs.
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

// The kinds of actions of a stage. The first six work on micro-batches and are ordered by the
// schedule. The others run as soon as they are ready: no other action of the batch can run then.
enum class ActionKind : std::uint8_t {
  headForward,
  tailStep,  // the tail's forward, loss and backward in one action
  headBackward,
  bodyForward,
  bodyBackward,
  bodyWeights,  // the rest of a backward that a schedule splits: the gradients of the weights
  report,       // server: makes BodyDone from the body's gradients
  decide,       // client: decides the step, from BodyDone and its own gradients
  update,
  exportBlob,  // server: answers a Fetch; member of a cohort: makes its part of a sum
  importBlob,  // server: puts the initial weights in place; member: puts the sum in place
  snapshot,    // server: copies its state for a checkpoint
  restore,     // server: puts the state of a checkpoint in place
  reduce,      // server: adds its gradients to those of the body's other replicas, before `report`
  sum,         // server: adds the gradients of all members' heads and tails
};
inline constexpr std::size_t kScheduledKinds = 6;
inline constexpr std::size_t kActionKinds = 15;
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

// With staleness, several training batches are in progress, and their micro-batches count as one
// sequence. The counts are those since no batch was in progress.
struct StageState {
  std::uint32_t hop = 0;                     // 0: the client; k: body k - 1
  std::uint32_t bodies = 1;                  // S: number of bodies in the row
  std::array<bool, kScheduledKinds> runs{};  // the kinds that this stage runs in this phase
  std::uint32_t microBatches = 0;            // number of micro-batches that have begun or may begin
  std::uint32_t inFlight = 0;                // W: maximum micro-batches in flight
  // Number of actions started, by scheduled kind. The next action of the kind has this number.
  std::array<std::uint32_t, kScheduledKinds> started{};
  bool isAlone = true;  // no other batch may follow in the sequence

  std::uint32_t next(ActionKind kind) const { return started[indexOf(kind)]; }
};

struct Schedule {
  std::string_view name;
  std::string_view description;  // one line
  // Returns the kind to run now, which must be ready; nullopt: wait, even if a kind is ready.
  std::optional<ActionKind> (*pick)(const ReadyKinds& ready, const StageState& state);
  // Priority of a flow on the link to a body. The waiting tensor with the lowest value is sent
  // first; on a tie, the one that was queued first.
  int (*linkPriority)(Flow flow, const Place& body);
  // Micro-batches in flight, at most those of a batch; 0: all of them. The minimum, below which the
  // schedule deadlocks, and the default per hop of the row: S bodies are S + 1 hops.
  std::uint32_t min = 0;
  std::uint32_t perHop = 0;
  // Whether bodies split their backward: BodyBackward computes the gradients that the body sends,
  // and BodyWeights those of its weights.
  bool splitsBackward = false;
  // Whether the schedule can overlap steps. One that ends each step before the next begins cannot.
  bool overlapsSteps = true;
  // Whether a server waits for its next action although another one is ready.
  bool isStrict = false;

  std::uint32_t minInFlight(std::uint32_t microBatches) const;
  std::uint32_t defaultInFlight(std::uint32_t microBatches, std::uint32_t bodies = 1) const;
};

std::span<const Schedule> scheduleTable();
// Throws UsageError "unknown-schedule" with the nearest known name.
const Schedule& findSchedule(std::string_view name);
// Whether runs with staleness and this number of replicas may use the schedule. A strict order may
// wait for a micro-batch that the client cannot send to a replica yet.
bool supportsStaleness(const Schedule& schedule, std::uint32_t replicas = 1);
// A run's number of micro-batches in flight: `configured`, or the schedule's default if that is 0.
// `microBatches`: M x (D + 1) in a run with staleness D. Throws UsageError "bad-in-flight" unless
// minimum <= W <= microBatches.
std::uint32_t resolveInFlight(const Schedule& schedule, std::uint32_t configured,
                              std::uint32_t microBatches, std::uint32_t bodies = 1);
// Maximum number of messages waiting on one side, and of tensors that the peer has not acknowledged
// with a Received. A correct peer stays below it. Part of the protocol.
constexpr std::size_t maxWaiting(std::uint32_t inFlight) { return std::size_t{8} * inFlight + 64; }

}  // namespace cleave
