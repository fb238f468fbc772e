#include "common/topology/division.h"

#include <algorithm>
#include <cassert>

namespace cleave {

// Of W consecutive micro-batches, each batch that they belong to adds at most one to an even share.
std::uint32_t inFlightOf(std::uint32_t inFlight, std::uint32_t replicas, std::uint32_t ofBatch,
                         std::uint32_t staleness) {
  if (replicas == 1) return inFlight;
  const std::uint32_t share = (inFlight + replicas - 1) / replicas + staleness;
  return std::min(share, ofBatch * (staleness + 1));
}

Division Division::of(std::uint32_t samples, std::uint32_t microBatches) {
  return {std::min(samples, microBatches), samples};
}

std::uint32_t Division::size(std::uint32_t i) const {
  assert(i < count);
  return samples / count + (i < samples % count ? 1 : 0);
}

std::uint32_t Division::offset(std::uint32_t i) const {
  assert(i < count);
  return i * (samples / count) + std::min(i, samples % count);
}

Division Division::shareOf(const Replica& replica) const {
  if (count == 0) return *this;
  const std::uint32_t own = replica.shareOf(count);
  // The first samples % count micro-batches have one more sample than the others.
  return {own, own * (samples / count) + replica.shareOf(samples % count)};
}

}  // namespace cleave
