// How a batch is divided into micro-batches, and which of several owners computes each one.
#pragma once

#include <cstdint>

namespace cleave {

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
  // The number of the replica's micro-batches in a batch of `microBatches`.
  std::uint32_t shareOf(std::uint32_t microBatches) const {
    return (microBatches + count - 1 - rank) / count;
  }

  bool operator==(const Replica&) const = default;
};
inline constexpr std::uint32_t kMaxBodyReplicas = 16;

// Of W micro-batches in flight, the maximum that belong to one of `replicas`. `ofBatch`: the
// replica's share of a batch.
std::uint32_t inFlightOf(std::uint32_t inFlight, std::uint32_t replicas, std::uint32_t ofBatch,
                         std::uint32_t staleness);

// The micro-batches of one batch. Their sizes differ by at most 1, larger first.
struct Division {
  std::uint32_t count = 0;    // micro-batches, at most `samples`
  std::uint32_t samples = 0;  // in the whole batch

  // The division of a batch of `samples` if M is `microBatches`: a small batch has fewer.
  static Division of(std::uint32_t samples, std::uint32_t microBatches);

  // In samples; `i` < `count`.
  std::uint32_t size(std::uint32_t i) const;
  std::uint32_t offset(std::uint32_t i) const;
  std::uint32_t largest() const { return size(0); }
  std::uint32_t smallest() const { return size(count - 1); }
  // The micro-batches that the replica computes: they are divided like a batch of their samples.
  Division shareOf(const Replica& replica) const;

  bool operator==(const Division&) const = default;
};

}  // namespace cleave
