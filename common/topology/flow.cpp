#include "common/topology/flow.h"

#include <array>
#include <charconv>
#include <limits>

namespace cleave {
namespace {

constexpr std::array<std::string_view, 8> kKindNames = {
    "activation", "gradient", "weights", "grads", "trace", "parts", "sums", "state"};
constexpr std::string_view ownerOf(FlowKind blob) {
  return blob >= FlowKind::parts ? "client" : "body";
}

// Removes a number without leading zeros from the front of `text`.
std::optional<std::uint8_t> takeNumber(std::string_view& text) {
  unsigned number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto digits = static_cast<std::size_t>(end - text.data());
  const bool isPlain = error == std::errc() && (digits == 1 || text.front() != '0');
  if (!isPlain || number > std::numeric_limits<std::uint8_t>::max()) return std::nullopt;
  text.remove_prefix(digits);
  return static_cast<std::uint8_t>(number);
}

}  // namespace

std::string flowName(Flow flow) {
  std::string name(kKindNames[static_cast<std::size_t>(flow.kind)]);
  if (isBlob(flow)) return name.append("/").append(ownerOf(flow.kind));
  name.append("/").append(std::to_string(flow.cut));
  if (flow.tensor > 0) name.append(".").append(std::to_string(flow.tensor));
  return name;
}

std::optional<Flow> flowFromName(std::string_view name) {
  const std::size_t slash = name.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  std::string_view rest = name.substr(slash + 1);
  for (std::size_t kind = 0; kind < kKindNames.size(); ++kind) {
    if (kKindNames[kind] != name.substr(0, slash)) continue;
    Flow flow{static_cast<FlowKind>(kind), 0, 0};
    if (isBlob(flow)) return rest == ownerOf(flow.kind) ? std::optional(flow) : std::nullopt;
    const auto cut = takeNumber(rest);
    if (!cut) return std::nullopt;
    flow.cut = *cut;
    if (rest.empty()) return flow;
    if (!rest.starts_with('.')) return std::nullopt;
    rest.remove_prefix(1);
    const auto tensor = takeNumber(rest);
    if (!tensor || *tensor == 0 || !rest.empty()) return std::nullopt;
    flow.tensor = *tensor;
    return flow;
  }
  return std::nullopt;
}

std::optional<Flow> flowFromNumber(std::uint64_t number) {
  const auto cut = static_cast<int>(number >> 1 & 0x7fff);
  const auto tensor = static_cast<int>(number >> 16 & 0xffff);
  const Flow flow = (number & 1) != 0 ? gradientAt(cut, tensor) : activationAt(cut, tensor);
  return flowNumber(flow) == number ? std::optional(flow) : std::nullopt;
}

Place placeOfAll(const std::vector<Place>& bodies) {
  const Place &first = bodies.front(), &last = bodies.back();
  return {first.firstCut, last.lastCut, first.first, last.last};
}

std::vector<Flow> activationsOf(int cut, const CutTensors& tensors) {
  std::vector<Flow> flows;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    flows.push_back(activationAt(cut, static_cast<int>(t)));
  }
  return flows;
}

std::vector<Flow> gradientsOf(int cut, const CutTensors& tensors) {
  std::vector<Flow> flows;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].hasGradient) flows.push_back(gradientAt(cut, static_cast<int>(t)));
  }
  return flows;
}

bool Place::contains(Flow flow) const {
  if (isBlob(flow) || (flow.cut != firstCut && flow.cut != lastCut)) return false;
  const CutTensors& tensors = flow.cut == firstCut ? first : last;
  return flow.tensor < tensors.size() && (isActivation(flow) || tensors[flow.tensor].hasGradient);
}

std::vector<Flow> Place::flows() const {
  std::vector<Flow> all;
  for (const auto& some : {activationsOf(firstCut, first), activationsOf(lastCut, last),
                           gradientsOf(lastCut, last), gradientsOf(firstCut, first)}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace cleave
