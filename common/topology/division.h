// How a batch is divided into micro-batches, and which of several owners has each one: a member of
// a cohort, whose samples they are, or a replica of a body, which computes them.
#pragma once

#include <cstdint>
#include <vector>

namespace cleave {

// The micro-batches of one owner: first, first + stride, first + 2 x stride, … Messages and stages
// number a micro-batch as in the whole batch; its position in a share counts from 0.
struct Share {
  std::uint32_t first = 0;
  std::uint32_t stride = 1;
  std::uint32_t count = 0;

  bool has(std::uint32_t i) const {
    return i >= first && (i - first) % stride == 0 && (i - first) / stride < count;
  }
  std::uint32_t position(std::uint32_t i) const { return (i - first) / stride; }
  std::uint32_t at(std::uint32_t n) const { return first + n * stride; }
};

// One of `count` servers that compute the same body.
struct Replica {
  std::uint32_t rank = 0;
  std::uint32_t count = 1;

  bool isAlone() const { return count == 1; }
  bool computes(std::uint32_t i) const { return i % count == rank; }
  // Of these consecutive micro-batches, those that the replica computes.
  Share shareOf(const Share& all) const;

  bool operator==(const Replica&) const = default;
};
inline constexpr std::uint32_t kMaxBodyReplicas = 16;

// Of W micro-batches in flight, the maximum that belong to one of `replicas`. `ofBatch`: the
// replica's share of a batch.
std::uint32_t inFlightOf(std::uint32_t inFlight, std::uint32_t replicas, std::uint32_t ofBatch,
                         std::uint32_t staleness);

// The samples of one owner, in micro-batches whose sizes differ by at most 1, larger first.
struct EvenSplit {
  std::uint32_t count = 0;  // micro-batches, at most `samples`
  std::uint32_t samples = 0;

  // In samples; `i` < `count`.
  std::uint32_t size(std::uint32_t i) const;
  std::uint32_t offset(std::uint32_t i) const;

  bool operator==(const EvenSplit&) const = default;
};

// The micro-batches of one batch.
struct Division {
  std::uint32_t count = 0;    // micro-batches
  std::uint32_t samples = 0;  // in the whole batch
  // The samples of each member of a cohort, in the members' order, which is also that of their
  // micro-batches; empty: all belong to one client.
  std::vector<EvenSplit> members = {};

  // The division of a batch of `samples` if M is `microBatches`: a small batch has fewer.
  static Division of(std::uint32_t samples, std::uint32_t microBatches);
  // The division of a cohort's batch: of each member, these samples, in the fewest micro-batches of
  // at most `largest` samples. A member may have none.
  static Division ofMembers(const std::vector<std::uint32_t>& samples, std::uint32_t largest);

  // In samples; `i` < `count`.
  std::uint32_t size(std::uint32_t i) const;
  std::uint32_t offset(std::uint32_t i) const;
  std::uint32_t largest() const { return size(0); }           // of one client
  std::uint32_t smallest() const { return size(count - 1); }  // of one client
  // The member whose samples these are.
  std::uint32_t memberOf(std::uint32_t i) const;

  Share all() const { return {0, 1, count}; }
  Share shareOfMember(std::uint32_t member) const;
  std::uint32_t samplesOf(const Share& share) const;

  bool operator==(const Division&) const = default;
};

}  // namespace cleave
