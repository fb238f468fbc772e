#include "common/core/key.h"

#include <array>

namespace cleave {
namespace {

constexpr std::array<std::string_view, kPhases> kPhaseNames = {"train", "eval"};
constexpr std::array<std::string_view, kFlows> kFlowNames = {
    "activation/0", "activation/1", "gradient/1", "gradient/0",
    "weights/body", "grads/body",   "trace/body"};

template <typename Enum, std::size_t n>
std::optional<Enum> fromName(const std::array<std::string_view, n>& names, std::string_view name) {
  for (std::size_t index = 0; index < n; ++index) {
    if (names[index] == name) return static_cast<Enum>(index);
  }
  return std::nullopt;
}

}  // namespace

std::string_view phaseName(Phase phase) { return kPhaseNames[static_cast<std::size_t>(phase)]; }
std::string_view flowName(Flow flow) { return kFlowNames[static_cast<std::size_t>(flow)]; }
std::optional<Phase> phaseFromName(std::string_view name) {
  return fromName<Phase>(kPhaseNames, name);
}
std::optional<Flow> flowFromName(std::string_view name) { return fromName<Flow>(kFlowNames, name); }

bool isUp(Flow flow) { return flow == Flow::activation0 || flow == Flow::gradient1; }
int cutOf(Flow flow) { return flow == Flow::activation0 || flow == Flow::gradient0 ? 0 : 1; }

std::string toString(const Key& key) {
  return std::string(phaseName(key.phase)) + " step " + std::to_string(key.step) +
         ", micro-batch " + std::to_string(key.i) + ", " + std::string(flowName(key.flow));
}

}  // namespace cleave
