#include "common/topology/step.h"

#include <algorithm>

namespace cleave {

std::uint32_t microBatchCount(std::uint32_t samples, std::uint32_t microBatches) {
  return std::min(samples, microBatches);
}

std::uint32_t microBatchSize(std::uint32_t samples, std::uint32_t count, std::uint32_t i) {
  return samples / count + (i < samples % count ? 1 : 0);
}

std::uint32_t microBatchOffset(std::uint32_t samples, std::uint32_t count, std::uint32_t i) {
  return i * (samples / count) + std::min(i, samples % count);
}

std::uint32_t shareOf(std::uint32_t microBatches, const Replica& replica) {
  return (microBatches + replica.count - 1 - replica.rank) / replica.count;
}

// Of W consecutive micro-batches, each batch that they belong to adds at most one to an even share.
std::uint32_t inFlightOf(std::uint32_t inFlight, std::uint32_t replicas, std::uint32_t ofBatch,
                         std::uint32_t staleness) {
  if (replicas == 1) return inFlight;
  const std::uint32_t share = (inFlight + replicas - 1) / replicas + staleness;
  return std::min(share, ofBatch * (staleness + 1));
}

MicroBatch inShare(const MicroBatch& at, const Replica& replica) {
  MicroBatch own = at;
  own.i = replica.ownNumber(at.i);
  own.microBatches = shareOf(at.microBatches, replica);
  if (at.microBatches == 0) return own;
  // The first samples % microBatches micro-batches of a batch have one more sample than the others.
  own.samples = own.microBatches * (at.samples / at.microBatches) +
                shareOf(at.samples % at.microBatches, replica);
  return own;
}

}  // namespace cleave
