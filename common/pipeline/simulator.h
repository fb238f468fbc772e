// A training step in virtual time: the schedule's own functions pick actions and tensors, on
// devices and a link that take the given times. What is predicted by it and what runs cannot drift
// apart.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/pipeline/bound.h"
#include "common/pipeline/schedule.h"

namespace cleave {

// How a simulated step is ordered: a schedule's row, or an order that a search tries.
struct Policy {
  std::function<std::optional<ActionKind>(const ReadyKinds&, const StageState&)> pick;
  std::function<int(Flow flow, std::uint32_t i)> linkPriority;  // the least goes first
  std::uint32_t inFlight = 1;                                   // W
};
Policy policyOf(const Schedule& schedule, std::uint32_t inFlight);

// What one of the two devices, codec threads or directions did, in the order of beginning.
struct Span {
  enum class Lane : std::uint8_t { client, clientCodec, uplink, downlink, serverCodec, server };
  Lane lane = Lane::client;
  std::string what;  // "HeadForward 3", "encode activation/0 3", "gradient/1 2"
  double begin = 0, end = 0;
};

struct SimulatedStep {
  double seconds = 0;
  std::vector<Span> timeline;  // where asked for
};

// One step from an idle pipeline to the client's update. Each side has one device and one codec
// thread (first come, first served; flows whose encoding and decoding take no time pass it by);
// each direction carries segments of clamp(rate * 2 ms, 64 KiB, 1 MiB), and the next one is chosen
// when half a segment and the link's own queue are still to be sent, as the connection does.
// Control messages take no time. Throws std::logic_error where the policy lets everything stand
// still.
SimulatedStep simulateStep(const StepCosts& costs, const Policy& policy, bool withTimeline = false);

// The shortest step that a search over orders finds: all priorities of kinds and flows with all
// numbers in flight, then `tries` random changes to the best one's order of single actions and
// tensors, by a fixed seed. Not proven to be the best there is.
double bestStepSeconds(const StepCosts& costs, std::uint32_t tries = 1000);

}  // namespace cleave
