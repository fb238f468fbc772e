// Values about a step that stages, engine and link exchange.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/topology/division.h"
#include "common/topology/key.h"

namespace cleave {

// The micro-batch that an action works on.
struct MicroBatch {
  Phase phase = Phase::train;
  std::uint64_t step = 0;
  std::uint32_t i = 0;
  Division batch{};

  // In samples.
  std::uint32_t size() const { return batch.size(i); }
  std::uint32_t offset() const { return batch.offset(i); }
};

// With staleness D, training step n is computed with the weights after step n - 1 - D, or with the
// initial ones; update n is applied to the weights after step n - 1. Returns the number of updates
// of the weights with which the step is computed. D = 0: each step uses the weights of the step
// before it.
constexpr std::uint64_t versionFor(std::uint64_t step, std::uint32_t staleness) {
  return step > staleness ? step - 1 - staleness : 0;
}
inline constexpr std::uint32_t kMaxStaleness = 16;

// The new basis of the learned insert at a cut, if its kind tracks one (tracked_basis.h): fp16,
// little-endian, in the order of the weight's elements.
struct InsertBasis {
  std::uint32_t cut = 0;
  std::string values;

  bool operator==(const InsertBasis&) const = default;
};
inline constexpr std::size_t kMaxBasisBytes = 48 << 10;

// One part's report about its gradients before an update.
struct GradientReport {
  double squareSum = 0;  // fp64, in parameter order
  bool finite = true;
  std::uint64_t peakMemory = 0;         // of the part's device so far, in bytes; 0: unknown
  std::vector<InsertBasis> bases = {};  // of the encoders in the part, from this step's update on
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
  std::vector<std::uint64_t> keep;      // the steps whose checkpoints are still needed
  std::vector<InsertBasis> bases = {};  // of all parts' reports; a body gets that of its decoder

  bool operator==(const StepDecision&) const = default;
};

}  // namespace cleave
