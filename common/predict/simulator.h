// Simulates a training step in virtual time: the engines' own class chooses each side's actions
// with the schedule's own functions, on devices and links with given costs. Predictions can
// therefore not diverge from runs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/engine/stage_engine.h"
#include "common/predict/bound.h"

namespace cleave {

// How a simulated step is ordered: by a schedule, or by an order that the search tries.
struct Policy {
  StageEngine::Pick pick;
  // Lowest first, on the link to `body`.
  std::function<int(Flow flow, std::uint32_t i, const Place& body)> linkPriority;
  std::uint32_t inFlight = 1;  // W
};
Policy policyOf(const Schedule& schedule, std::uint32_t inFlight);

// Activity of one device, codec thread or link direction. Spans are in the order in which they
// begin.
struct Span {
  enum class Lane : std::uint8_t { client, clientCodec, uplink, downlink, serverCodec, server };
  Lane lane = Lane::client;
  std::size_t body = 0;  // of a server or a link
  std::string what;      // such as "HeadForward 3", "encode activation/0 3", "gradient/1 2"
  double begin = 0, end = 0;
};

struct SimulatedStep {
  double seconds = 0;
  std::vector<Span> timeline;  // if requested
};

// Simulates one step, from an idle pipeline to the client's update. Each side has one device and
// one codec thread, which serves tensors in order of arrival; flows whose encoding and decoding
// take no time bypass it. Each direction of a link carries segments of clamp(rate * 2 ms, 64 KiB, 1
// MiB). As in the connection, the next segment is chosen when half a segment plus the link's own
// queue remain to be sent. What one body sends to the next passes through the client unchanged.
// Control messages take no time. Throws std::logic_error if the policy deadlocks.
SimulatedStep simulateStep(const StepCosts& costs, const Policy& policy, bool withTimeline = false);

// The shortest step found by a search over orders: all priorities of kinds and flows with all
// numbers in flight, then `tries` random changes to the best one's order of single actions and
// tensors, with a fixed seed. Not proven to be optimal.
double bestStepSeconds(const StepCosts& costs, std::uint32_t tries = 1000);

}  // namespace cleave
