#include "common/topology/division.h"

#include <algorithm>
#include <cassert>

namespace cleave {

Share Replica::shareOf(const Share& all) const {
  assert(all.stride == 1 && rank < count);
  const std::uint32_t skipped = (rank + count - all.first % count) % count;
  if (all.count <= skipped) return {all.first, count, 0};
  return {all.first + skipped, count, (all.count - skipped + count - 1) / count};
}

// Of W consecutive micro-batches, each batch that they belong to adds at most one to an even share.
std::uint32_t inFlightOf(std::uint32_t inFlight, std::uint32_t replicas, std::uint32_t ofBatch,
                         std::uint32_t staleness) {
  assert(inFlight > 0 && replicas > 0);
  if (replicas == 1) return inFlight;
  const std::uint32_t share = (inFlight + replicas - 1) / replicas + staleness;
  return std::min(share, ofBatch * (staleness + 1));
}

std::uint32_t EvenSplit::size(std::uint32_t i) const {
  assert(i < count);
  return samples / count + (i < samples % count ? 1 : 0);
}

std::uint32_t EvenSplit::offset(std::uint32_t i) const {
  assert(i < count);
  return i * (samples / count) + std::min(i, samples % count);
}

Division Division::of(std::uint32_t samples, std::uint32_t microBatches) {
  return {std::min(samples, microBatches), samples};
}

Division Division::ofMembers(const std::vector<std::uint32_t>& samples, std::uint32_t largest) {
  assert(largest > 0);
  Division division;
  for (const std::uint32_t each : samples) {
    const EvenSplit& member =
        division.members.emplace_back(EvenSplit{(each + largest - 1) / largest, each});
    division.count += member.count;
    division.samples += member.samples;
  }
  return division;
}

std::uint32_t Division::size(std::uint32_t i) const {
  if (members.empty()) return EvenSplit{count, samples}.size(i);
  const std::uint32_t member = memberOf(i);
  return members[member].size(i - shareOfMember(member).first);
}

std::uint32_t Division::offset(std::uint32_t i) const {
  if (members.empty()) return EvenSplit{count, samples}.offset(i);
  const std::uint32_t member = memberOf(i);
  std::uint32_t before = 0;
  for (std::uint32_t m = 0; m < member; ++m) before += members[m].samples;
  return before + members[member].offset(i - shareOfMember(member).first);
}

std::uint32_t Division::memberOf(std::uint32_t i) const {
  assert(i < count);
  std::uint32_t member = 0;
  while (!members.empty() && i >= members[member].count) i -= members[member++].count;
  return member;
}

Share Division::shareOfMember(std::uint32_t member) const {
  if (members.empty()) return all();
  assert(member < members.size());
  Share share;
  for (std::uint32_t m = 0; m < member; ++m) share.first += members[m].count;
  share.count = members[member].count;
  return share;
}

std::uint32_t Division::samplesOf(const Share& share) const {
  std::uint32_t sum = 0;
  for (std::uint32_t position = 0; position < share.count; ++position) {
    sum += size(share.at(position));
  }
  return sum;
}

}  // namespace cleave
