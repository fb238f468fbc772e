#include "common/topology/key.h"

#include <array>

namespace cleave {
namespace {

constexpr std::array<std::string_view, kPhases> kPhaseNames = {"train", "eval"};

}  // namespace

std::string_view phaseName(Phase phase) { return kPhaseNames[static_cast<std::size_t>(phase)]; }

std::optional<Phase> phaseFromName(std::string_view name) {
  for (const Phase phase : {Phase::train, Phase::eval}) {
    if (phaseName(phase) == name) return phase;
  }
  return std::nullopt;
}

std::string toString(const Key& key) {
  return std::string(phaseName(key.phase)) + " step " + std::to_string(key.step) +
         ", micro-batch " + std::to_string(key.i) + ", " + flowName(key.flow);
}

}  // namespace cleave
