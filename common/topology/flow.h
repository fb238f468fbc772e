// Flows: the kinds of tensors and blobs that cross the link. The model's blocks are divided at its
// cuts, which are numbered from 0, starting at the input. The client has the blocks before cut 0
// (the head) and after the last cut (the tail); each body is between two neighbouring cuts.
//
//   head | cut 0 | body 0 | cut 1 | body 1 | … | cut K | tail       K bodies, K + 1 cuts
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cleave {

// The first two are tensors of a step; the others are blobs about a body, which answer a Fetch or
// carry the initial weights, or, in a cohort, about heads and tails.
enum class FlowKind : std::uint8_t {
  activation,  // across a cut, towards the output
  gradient,    // across a cut, towards the input
  weights,     // parameters and buffers as safetensors
  grads,       // gradients as safetensors
  trace,       // the server's trace of its actions
  parts,       // gradients of one member's head and tail
  sums,        // the sums of all members' parts
  state,       // heads and tails of a checkpoint, for members that lack it
};

struct Flow {
  FlowKind kind = FlowKind::activation;
  std::uint8_t cut = 0;     // tensors only
  std::uint8_t tensor = 0;  // index among the tensors of that cut; 0: the activation

  constexpr bool operator==(const Flow&) const = default;
  constexpr auto operator<=>(const Flow&) const = default;
};

constexpr Flow activationAt(int cut, int tensor = 0) {
  return {FlowKind::activation, static_cast<std::uint8_t>(cut), static_cast<std::uint8_t>(tensor)};
}
constexpr Flow gradientAt(int cut, int tensor = 0) {
  return {FlowKind::gradient, static_cast<std::uint8_t>(cut), static_cast<std::uint8_t>(tensor)};
}
inline constexpr Flow kWeightsBody{FlowKind::weights, 0, 0};
inline constexpr Flow kGradsBody{FlowKind::grads, 0, 0};
inline constexpr Flow kTraceBody{FlowKind::trace, 0, 0};
inline constexpr Flow kPartsClient{FlowKind::parts, 0, 0};
inline constexpr Flow kSumsClient{FlowKind::sums, 0, 0};
inline constexpr Flow kStateClient{FlowKind::state, 0, 0};

constexpr bool isActivation(Flow flow) { return flow.kind == FlowKind::activation; }
constexpr bool isGradient(Flow flow) { return flow.kind == FlowKind::gradient; }
constexpr bool isBlob(Flow flow) { return !isActivation(flow) && !isGradient(flow); }

// "activation/0", "weights/body"; "activation/0.1" for the second tensor of a cut.
std::string flowName(Flow flow);
std::optional<Flow> flowFromName(std::string_view name);

// A unique number for each tensor flow, for keyed random numbers and trace files.
constexpr std::uint64_t flowNumber(Flow flow) {
  return std::uint64_t{flow.tensor} << 16 | std::uint64_t{flow.cut} << 1 |
         (isGradient(flow) ? 1U : 0U);
}
// The tensor flow with that number; nullopt if there is none.
std::optional<Flow> flowFromNumber(std::uint64_t number);

// One of the tensors of a cut, such as the activation itself, or an accompanying mask.
struct CutTensor {
  std::string name = "activation";
  bool hasGradient = true;
};
using CutTensors = std::vector<CutTensor>;

// The place of a body: the cuts before and after it, and the tensors that cross them.
struct Place {
  int firstCut = 0;
  int lastCut = 1;
  CutTensors first = {{}};
  CutTensors last = {{}};

  // The flows between the client and this body, in the order in which a micro-batch crosses them.
  std::vector<Flow> flows() const;
  // Whether the flow crosses between the client and this body.
  bool contains(Flow flow) const;
  // Whether the client sends the flow to this body. Requires contains().
  bool isUp(Flow flow) const { return flow.cut == (isActivation(flow) ? firstCut : lastCut); }
  // Whether the number of micro-batches in flight can be limited. The body keeps autograd's saved
  // data until the gradient at its last cut has arrived. If no gradient crosses its first cut, the
  // client is not informed when this data is freed.
  bool limitsInFlight() const {
    return contains(gradientAt(firstCut)) || !contains(gradientAt(lastCut));
  }
};

// The place of consecutive bodies, taken as one.
Place placeOfAll(const std::vector<Place>& bodies);

// The flows of one cut and kind.
std::vector<Flow> activationsOf(int cut, const CutTensors& tensors);
std::vector<Flow> gradientsOf(int cut, const CutTensors& tensors);

// A map from flows to values, in the order in which the flows were added. Suitable for a few flows.
template <typename T>
class FlowMap {
 public:
  using Entry = std::pair<Flow, T>;

  FlowMap() = default;
  explicit FlowMap(const std::vector<Flow>& flows, const T& value = {}) {
    for (const Flow flow : flows) entries_.emplace_back(flow, value);
  }

  // Adds a default value if the flow has none.
  T& operator[](Flow flow) {
    if (T* found = find(flow)) return *found;
    return entries_.emplace_back(flow, T{}).second;
  }
  // Throws std::out_of_range if the flow has no value.
  const T& at(Flow flow) const {
    if (const T* found = find(flow)) return *found;
    throw std::out_of_range(flowName(flow) + " is not a flow here");
  }
  // Null if the flow has no value.
  const T* find(Flow flow) const {
    for (const Entry& entry : entries_) {
      if (entry.first == flow) return &entry.second;
    }
    return nullptr;
  }
  T* find(Flow flow) { return const_cast<T*>(std::as_const(*this).find(flow)); }
  // The flow's value, or a default one.
  T get(Flow flow) const {
    const T* found = find(flow);
    return found == nullptr ? T{} : *found;
  }

  std::size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  auto begin() { return entries_.begin(); }
  auto end() { return entries_.end(); }
  bool operator==(const FlowMap&) const = default;

 private:
  std::vector<Entry> entries_;
};

}  // namespace cleave
