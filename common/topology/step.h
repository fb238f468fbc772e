// Values about a step that stages, engine and link exchange.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/topology/key.h"

namespace cleave {

// The micro-batch that an action works on.
struct MicroBatch {
  Phase phase = Phase::train;
  std::uint64_t step = 0;
  std::uint32_t i = 0;
  std::uint32_t microBatches = 0;  // micro-batches in this batch
  std::uint32_t samples = 0;       // samples in the whole batch
};

// A batch of `samples` is split into min(microBatches, samples) micro-batches, whose sizes differ
// by at most 1, larger first.
std::uint32_t microBatchCount(std::uint32_t samples, std::uint32_t microBatches);
std::uint32_t microBatchSize(std::uint32_t samples, std::uint32_t count, std::uint32_t i);
std::uint32_t microBatchOffset(std::uint32_t samples, std::uint32_t count, std::uint32_t i);

// One of `count` servers that compute the same body. Of each batch, it computes the micro-batches
// rank, rank + count, rank + 2 x count, …; it numbers its own from 0.
struct Replica {
  std::uint32_t rank = 0;
  std::uint32_t count = 1;

  bool isAlone() const { return count == 1; }
  // `i`: a micro-batch's number in the batch; `own`: the replica's number of the same micro-batch.
  bool computes(std::uint32_t i) const { return i % count == rank; }
  std::uint32_t ownNumber(std::uint32_t i) const { return i / count; }
  std::uint32_t numberInBatch(std::uint32_t own) const { return own * count + rank; }

  bool operator==(const Replica&) const = default;
};
inline constexpr std::uint32_t kMaxBodyReplicas = 16;
// The number of the replica's micro-batches in a batch of `microBatches`.
std::uint32_t shareOf(std::uint32_t microBatches, const Replica& replica);
// Of W micro-batches in flight, the maximum that belong to one of `replicas`.
// `ofBatch`: shareOf() of a batch.
std::uint32_t inFlightOf(std::uint32_t inFlight, std::uint32_t replicas, std::uint32_t ofBatch,
                         std::uint32_t staleness);
// Converts a micro-batch that the replica computes from its number in the batch to the replica's
// own: `i`, `microBatches` and `samples` become those of the replica's share. The share of a batch
// is itself a batch with the sizes above.
MicroBatch inShare(const MicroBatch& at, const Replica& replica);

// With staleness D, training step n is computed with the weights after step n - 1 - D, or with the
// initial ones; update n is applied to the weights after step n - 1. Returns the number of updates
// of the weights with which the step is computed. D = 0: each step uses the weights of the step
// before it.
constexpr std::uint64_t versionFor(std::uint64_t step, std::uint32_t staleness) {
  return step > staleness ? step - 1 - staleness : 0;
}
inline constexpr std::uint32_t kMaxStaleness = 16;

// One part's report about its gradients before an update.
struct GradientReport {
  double squareSum = 0;  // fp64, in parameter order
  bool finite = true;
};

inline constexpr std::size_t kMaxParameterGroups = 64;

// Decided by the client once per step; applied by head, body and tail alike.
struct StepDecision {
  std::uint64_t step = 0;
  bool apply = true;                  // false: the step counts, but changes nothing
  std::vector<double> learningRates;  // by parameter group
  double clipFactor = 1;              // multiplies the gradients
  double lossScale = 1;     // factor by which the loss, and therefore the gradients, are scaled
  bool checkpoint = false;  // whether each part saves its state after this step
  std::vector<std::uint64_t> keep;  // the steps whose checkpoints are still needed

  bool operator==(const StepDecision&) const = default;
};

}  // namespace cleave
