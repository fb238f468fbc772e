// A lower bound on the duration of a training step for any order of its actions and tensors, and
// the resource that determines it. Pure arithmetic.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "common/engine/schedule.h"
#include "common/topology/division.h"
#include "common/topology/flow.h"

namespace cleave {

// All costs are per micro-batch; the micro-batches of a step are assumed to have equal costs.

// The replicas of a body: servers that share its micro-batches (Replica in division.h), and add
// their gradients at the end of a step.
struct ReplicaCosts {
  std::uint32_t count = 1;
  double bytes = 0;    // size of one replica's gradients and statistics
  double seconds = 0;  // of the sum, from the last backward of all replicas until all have it
};
// Seconds of a sum over a network with this rate (bytes per second per replica and direction) and
// one-way latency. First the replicas agree on the call, which takes one round trip. Then each
// sends parts of its values to the replicas that add them, and receives the sums: (R - 1) / R of
// the bytes and one latency each time.
double reduceSeconds(const ReplicaCosts& replicas, double rate, double latency);

// A body, and the link between it and the client. With replicas: each of them, and its link.
struct BodyCosts {
  Place place;
  double forward = 0, backward = 0;  // seconds of the passes
  double rateUp = 0, rateDown = 0;   // bytes per second; the bound needs both
  double latency = 0;                // seconds, one way
  // Bytes per direction that the link buffers. A more urgent tensor has to wait for them. The bound
  // ignores this.
  double queueBytes = 0;
  // The part of `backward` that computes the gradients of the weights: the seconds of BodyWeights,
  // if the schedule splits the backward. 0: unknown.
  double weights = 0;
  ReplicaCosts replicas = {};

  bool hasRates() const { return rateUp > 0 && rateDown > 0; }
};

// A direct link between two neighbouring bodies.
struct EdgeCosts {
  double rate = 0;     // bytes per second in each direction, above 0
  double latency = 0;  // seconds, one way
};

// All tensors of one kind at one cut together: bytes on the wire, and codec seconds at their sender
// and receiver.
struct FlowCosts {
  double bytes = 0;
  double encodeSeconds = 0, decodeSeconds = 0;
};

struct StepCosts {
  std::uint32_t microBatches = 1;
  double headForward = 0, tailStep = 0, headBackward = 0;  // seconds
  std::vector<BodyCosts> bodies = {{}};                    // in model order, at least one
  FlowMap<FlowCosts> flows;
  double updateSeconds = 0;  // on the client, once per step
  // Whether the links of all servers share the bandwidth of the client's connection. Their rates
  // are then those of the connection, equal for all servers; the latencies may differ. Otherwise
  // each link has its own bandwidth.
  bool sharesLink = false;
  // Direct links: edges[b] connects the bodies b and b + 1. Empty: the client passes the tensors
  // between two bodies on.
  std::vector<EdgeCosts> edges;
  // The members of a cohort: clients that train together, each with a share of the micro-batches, a
  // link of its own to each server, and the costs of the client. Without direct links. The costs
  // are those of a micro-batch of equal shares.
  std::uint32_t members = 1;
  // If their shares of a batch vary at random: its samples; 0: they are equal.
  std::uint32_t batch = 0;
  std::uint32_t largest = 1;  // the maximum number of samples of a micro-batch
  std::uint32_t samples = 1;  // of the micro-batch that has these costs, at most `largest`
  double memberBytes = 0;     // what a member adds to the sum over them, and the size of the sum
  bool isByMember = true;     // the order of the servers (Cohort::isByMember())

  // Returns the costs of the same step with another number of micro-batches: all costs except the
  // update and the replicas' sums are scaled in proportion.
  StepCosts inMicroBatches(std::uint32_t number) const;
  std::vector<Place> places() const;  // of the bodies
  std::size_t servers() const;        // of all bodies
  std::uint32_t maxReplicas() const;  // of a body
  bool hasRates() const;
  bool hasWeights() const;  // whether BodyCosts::weights is known
  // The lowest rates and the highest latency of all bodies' links. Replicas have one entry in
  // `bodies`.
  BodyCosts slowestLink() const;
  // Seconds of an action of the client or of that body; of a whole backward for bodyBackward.
  double of(ActionKind kind, std::size_t body = 0) const;
  double& of(ActionKind kind, std::size_t body = 0);
  // How a step is divided. `draw`: one of many possible divisions; nullopt: in equal shares.
  Division division(std::optional<std::uint32_t> draw = std::nullopt) const;
  // The first body; with one server, the only one.
  BodyCosts& body() { return bodies.front(); }
  const BodyCosts& body() const { return bodies.front(); }
};

// Bytes per micro-batch, over the client's links to all servers. A tensor that the client passes on
// counts twice; one that crosses a direct link does not count.
struct ClientBytes {
  double up = 0, down = 0;
};
ClientBytes clientBytesOf(const StepCosts& costs);

enum class Bottleneck : std::uint8_t {
  clientCompute,
  serverCompute,
  uplink,
  downlink,
  latency,
  codec
};
inline constexpr std::size_t kBottlenecks = 6;
std::string_view bottleneckName(Bottleneck bottleneck);  // such as "client compute"

struct StepBound {
  double seconds = 0;
  // The resource with the largest term. Exception: if the path of a single micro-batch is longer
  // than every term, or if the resource with the largest term is busy for less than half of the
  // bound, the bottleneck is the resource that takes the largest part of the path.
  Bottleneck bottleneck = Bottleneck::clientCompute;
  // Index of the body, if the bottleneck is a server or a link; 0 for a shared link and for
  // replicas. A direct link counts as the link of the second one of its bodies.
  std::size_t body = 0;
};

// The bound is the maximum of one term per resource (client, servers, each direction of each link,
// each side's codecs) and the path of a single micro-batch. A resource's term is the time before
// the first micro-batch can reach it, its work for all micro-batches, the time it must idle, and
// the time from its last work until the end of the step. docs/design/engine.md has the formulas.
// Requires hasRates(). `splitsBackward`: as Schedule::splitsBackward.
StepBound stepBound(const StepCosts& costs, bool splitsBackward = false);

// The same for the seconds per step of a long run with staleness D, in which up to D + 1 steps
// overlap: each resource does the work of one step per step, and the path of a micro-batch and the
// update take at most D + 1 steps. Without staleness, stepBound() is higher.
StepBound steadyStepBound(const StepCosts& costs, std::uint32_t staleness,
                          bool splitsBackward = false);

}  // namespace cleave
