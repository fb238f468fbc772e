// How fast a training step can be at best, whatever the order of its actions and tensors, and what
// it waits for. Pure arithmetic.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "common/core/key.h"
#include "common/pipeline/schedule.h"

namespace cleave {

// What the parts of a training step take. Seconds and bytes of one micro-batch; all micro-batches
// of a step count alike.
struct StepCosts {
  std::uint32_t microBatches = 1;
  std::array<double, kScheduledKinds> seconds{};  // by ActionKind
  std::array<double, kTensorFlows> bytes{};       // on the wire, by Flow
  std::array<double, kTensorFlows> encodeSeconds{}, decodeSeconds{};
  double rateUp = 0, rateDown = 0;  // bytes a second; a bound needs both
  double latency = 0;               // seconds, one way
  // That the link takes on, each direction, before it sends them: more urgent ones wait for those.
  // The bound knows nothing of it.
  double queueBytes = 0;
  double updateSeconds = 0;  // the client's, once a step

  // Of the same step in another number of micro-batches: all but the update in proportion.
  StepCosts inMicroBatches(std::uint32_t number) const;
  bool hasRates() const { return rateUp > 0 && rateDown > 0; }
  double of(ActionKind kind) const { return seconds[indexOf(kind)]; }
  double wireSeconds(Flow flow) const;
  // From handing a tensor to the link to having it on the other side, but for the latency.
  double transitSeconds(Flow flow) const;
};

enum class Bottleneck : std::uint8_t {
  clientCompute,
  serverCompute,
  uplink,
  downlink,
  latency,
  codec
};
inline constexpr std::size_t kBottlenecks = 6;
std::string_view bottleneckName(Bottleneck bottleneck);  // "client compute"

struct StepBound {
  double seconds = 0;
  // The resource that the greatest of the terms is about; of the path of one micro-batch, what
  // takes most of it.
  Bottleneck bottleneck = Bottleneck::clientCompute;
};

// Each resource (client, server, the link's two directions, each side's codecs) works through its
// share of all micro-batches, from when the first can reach it until the last is through with what
// comes after; and one micro-batch has its path to go. The greatest of these is the bound:
// docs/DESIGN.md has the formulas. Requires hasRates().
StepBound stepBound(const StepCosts& costs);

}  // namespace cleave
