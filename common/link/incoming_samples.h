// Checks the sample numbers (indices in the training data) that a client sends before each training
// batch, so that a session holds the sample numbers of at most two batches. io thread only.
#pragma once

#include <cstdint>

#include "common/link/wire_messages.h"

namespace cleave {

class IncomingSamples {
 public:
  // `trainSamples`: size of the training data; 0: the run needs no sample numbers.
  IncomingSamples(std::uint32_t trainSamples, std::uint32_t maxBatch)
      : trainSamples_(trainSamples), maxBatch_(maxBatch) {}

  // Throws ProtocolError "unexpected-message" if the run needs no sample numbers, "step-gap" if
  // they belong to no batch that may start now, and "bad-metadata" if one is out of range.
  void received(const SampleNumbers& samples);
  // Call when the Step of a training batch has arrived: numbers of later batches may follow.
  void decided(std::uint64_t step) { decided_ = step; }

 private:
  const std::uint32_t trainSamples_;
  const std::uint32_t maxBatch_;
  std::uint64_t step_ = 0;     // of the latest batch; 0: none yet
  std::uint64_t decided_ = 0;  // the latest Step
  std::uint32_t count_ = 0;    // numbers of the latest batch
};

}  // namespace cleave
