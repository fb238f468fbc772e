// The key of a message: phase, step, micro-batch and flow (docs/DESIGN.md, "Words").
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cleave {

enum class Phase : std::uint8_t { train, eval };
inline constexpr std::size_t kPhases = 2;

// What is sent over the link. The first four are the tensors of a step; the others answer a Fetch.
enum class Flow : std::uint8_t {
  activation0,  // head -> body, up
  activation1,  // body -> tail, down
  gradient1,    // tail -> body, up
  gradient0,    // body -> head, down
  weightsBody,  // the body's parameters and buffers as safetensors, down
  gradsBody,    // the body's gradients as safetensors, down
  traceBody,    // the server's trace of its actions, down
};
inline constexpr std::size_t kTensorFlows = 4;
inline constexpr std::size_t kFlows = 7;

std::string_view phaseName(Phase phase);  // "train"
std::string_view flowName(Flow flow);     // "activation/0"
std::optional<Phase> phaseFromName(std::string_view name);
std::optional<Flow> flowFromName(std::string_view name);
// For arrays indexed by flow.
constexpr std::size_t indexOf(Flow flow) { return static_cast<std::size_t>(flow); }
// Whether the client sends it.
bool isUp(Flow flow);
// The cut that a tensor flow crosses (0: head and body, 1: body and tail).
int cutOf(Flow flow);

struct Key {
  Phase phase = Phase::train;
  std::uint64_t step = 0;  // train: counts from 1; eval: counts batches over the whole run, from 1
  std::uint32_t i = 0;     // micro-batch
  Flow flow = Flow::activation0;

  auto operator<=>(const Key&) const = default;
};

std::string toString(const Key& key);  // "train step 3, micro-batch 1, gradient/0"

}  // namespace cleave
