// Simulates a training step in virtual time, on devices and links with given costs. The simulator
// uses the engines' StageEngine and the schedules' own functions, so that it orders actions and
// tensors as real runs do.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/engine/stage_engine.h"
#include "common/predict/bound.h"

namespace cleave {

// The order of a simulated step: a schedule's, or one that the search tries.
struct Policy {
  StageEngine::Pick pick;
  // Priority on the link to `body`; lower values are sent first.
  std::function<int(Flow flow, std::uint32_t i, const Place& body)> linkPriority;
  std::uint32_t inFlight = 1;   // W
  bool splitsBackward = false;  // see Schedule
};
Policy policyOf(const Schedule& schedule, std::uint32_t inFlight);

// Activity of one device, codec thread or link direction. Spans are in the order in which they
// begin.
struct Span {
  enum class Lane : std::uint8_t {
    client,
    clientCodec,
    uplink,
    downlink,
    serverCodec,
    server,
    edgeForward,  // of a direct link, towards the last body
    edgeBackward
  };
  Lane lane = Lane::client;
  // Index of the server, also for its link; of a direct link, of its second server.
  std::size_t server = 0;
  std::size_t member = 0;  // of a cohort: of a client and its links
  std::string what;        // such as "HeadForward 3", "encode activation/0 3", "gradient/1 2"
  double begin = 0, end = 0;
};

struct SimulatedStep {
  double seconds = 0;
  std::vector<Span> timeline;  // if requested
};

// Simulates one step, from an idle pipeline to the client's update. Each side has one device and
// one codec thread, which serves tensors in order of arrival; flows whose encoding and decoding
// take no time bypass it. Each direction of a link carries segments of 2 ms of data at the link's
// rate, clamped to [64 KiB, 1 MiB]. As in a Connection, the next segment is chosen when half a
// segment plus the link's own queue remain to be sent. Links that share a bandwidth send their
// segments in the order in which they were chosen. Without direct links, the client forwards
// tensors from one body to the next unchanged, between two of its actions. Replicas add their
// gradients after the last action of all of them, one step at a time. Control messages take no
// time, except BodyDone: each server sends it after its last action, or after the sum, and the step
// ends when the client has received all of them and has made its update. In a cohort, the members
// but the first begin two latencies later, because Step reaches them over the server; the step ends
// when the first one has the sum over all members. If their shares vary, the seconds are the mean
// of many divisions; a timeline has equal shares. Throws std::logic_error if the policy deadlocks.
SimulatedStep simulateStep(const StepCosts& costs, const Policy& policy, bool withTimeline = false);

// Seconds per step of a long run with this staleness: up to D + 1 steps overlap, as Coordinator and
// Participant allow. Updates of servers take no time. Without staleness, it equals simulateStep().
// With staleness, requires a single member.
double steadyStepSeconds(const StepCosts& costs, const Policy& policy, std::uint32_t staleness);

// Returns the duration of the shortest step found by a search over orders. It tries all priorities
// of kinds and flows with all numbers in flight, and splits the backward if BodyCosts::weights is
// known. Then it makes `tries` random changes, with a fixed seed, to the best result's order of
// single actions and tensors. The result need not be optimal. The members of a cohort have equal
// shares.
double bestStepSeconds(const StepCosts& costs, std::uint32_t tries = 1000);

}  // namespace cleave
