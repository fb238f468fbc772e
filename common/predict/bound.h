// Lower bound on the duration of a training step, whatever the order of its actions and tensors,
// and the resource that determines it. Pure arithmetic.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "common/core/key.h"
#include "common/engine/schedule.h"

namespace cleave {

// Costs of the parts of a training step: seconds and bytes of one micro-batch. All micro-batches of
// a step are assumed equal.
struct StepCosts {
  std::uint32_t microBatches = 1;
  std::array<double, kScheduledKinds> seconds{};  // by ActionKind
  std::array<double, kTensorFlows> bytes{};       // on the wire, by Flow
  std::array<double, kTensorFlows> encodeSeconds{}, decodeSeconds{};
  double rateUp = 0, rateDown = 0;  // bytes per second; the bound needs both
  double latency = 0;               // seconds, one way
  // Bytes per direction that the link accepts before it sends them. A more urgent tensor has to
  // wait for these. Ignored by the bound.
  double queueBytes = 0;
  double updateSeconds = 0;  // on the client, once per step

  // Costs of the same step with another number of micro-batches: everything except the update is
  // scaled in proportion.
  StepCosts inMicroBatches(std::uint32_t number) const;
  bool hasRates() const { return rateUp > 0 && rateDown > 0; }
  double of(ActionKind kind) const { return seconds[indexOf(kind)]; }
  double wireSeconds(Flow flow) const;
  // From handing a tensor to the link until it is decoded on the other side, without the latency.
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
std::string_view bottleneckName(Bottleneck bottleneck);  // such as "client compute"

struct StepBound {
  double seconds = 0;
  // The resource of the largest term. If the path of one micro-batch is the largest, or the
  // resource of the largest term is busy for less than half of the bound: the resource that takes
  // most of the path.
  Bottleneck bottleneck = Bottleneck::clientCompute;
};

// The bound is the largest of these terms: for each resource (client, server, each direction of the
// link, each side's codecs), its work for all micro-batches, plus the time before the first
// micro-batch can reach it and the time from the last one until the end of the step; and the path
// of a single micro-batch. docs/DESIGN.md has the formulas. Requires hasRates().
StepBound stepBound(const StepCosts& costs);

}  // namespace cleave
