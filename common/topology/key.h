// The key of a message: phase, step, micro-batch and flow (docs/DESIGN.md, "Terms").
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/topology/flow.h"

namespace cleave {

enum class Phase : std::uint8_t { train, eval };
inline constexpr std::size_t kPhases = 2;
std::string_view phaseName(Phase phase);  // "train"
std::optional<Phase> phaseFromName(std::string_view name);

struct Key {
  Phase phase = Phase::train;
  std::uint64_t step = 0;  // train: counts from 1; eval: counts batches over the whole run, from 1
  std::uint32_t i = 0;     // micro-batch
  Flow flow;

  auto operator<=>(const Key&) const = default;
};

std::string toString(const Key& key);  // "train step 3, micro-batch 1, gradient/0"

}  // namespace cleave
