#include "common/codec/tensor.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>

namespace cleave {
namespace {

// Tensors, messages and files are little-endian; no code swaps bytes.
static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kMaxElements = std::size_t{1} << 40;
constexpr std::array<std::string_view, 4> kDTypeNames = {"f32", "f16", "bf16", "i64"};
constexpr std::array<std::size_t, 4> kDTypeBytes = {4, 2, 2, 8};
constexpr std::array<std::string_view, 2> kMemoryOrderNames = {"contiguous", "channels_last"};

template <typename Enum, std::size_t n>
std::optional<Enum> fromName(const std::array<std::string_view, n>& names, std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Enum>(found - names.begin());
}

}  // namespace

std::string_view dtypeName(DType dtype) { return kDTypeNames[static_cast<std::size_t>(dtype)]; }
std::optional<DType> dtypeFromName(std::string_view name) {
  return fromName<DType>(kDTypeNames, name);
}
std::size_t dtypeBytes(DType dtype) { return kDTypeBytes[static_cast<std::size_t>(dtype)]; }

std::string_view memoryOrderName(MemoryOrder order) {
  return kMemoryOrderNames[static_cast<std::size_t>(order)];
}
std::optional<MemoryOrder> memoryOrderFromName(std::string_view name) {
  return fromName<MemoryOrder>(kMemoryOrderNames, name);
}

std::optional<std::size_t> TensorSpec::checkedElements() const {
  // A dimension of 0 counts as 1 in the limit: [0, 2^60, 2^60] has no elements, but its strides
  // would overflow during allocation.
  std::size_t product = 1;
  bool empty = false;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    if (dimension == 0) empty = true;
    const std::size_t factor = std::max<std::size_t>(static_cast<std::size_t>(dimension), 1);
    if (factor > kMaxElements / product) return std::nullopt;
    product *= factor;
  }
  return empty ? 0 : product;
}

std::size_t TensorSpec::elements() const {
  assert(checkedElements().has_value());
  std::size_t product = 1;
  for (const std::int64_t dimension : shape) product *= static_cast<std::size_t>(dimension);
  return product;
}

std::string toString(const TensorSpec& spec) {
  std::string text(dtypeName(spec.dtype));
  text += '[';
  for (std::size_t dimension = 0; dimension < spec.shape.size(); ++dimension) {
    if (dimension > 0) text += ", ";
    text += std::to_string(spec.shape[dimension]);
  }
  text += ']';
  if (spec.order != MemoryOrder::contiguous) text += ' ' + std::string(memoryOrderName(spec.order));
  return text;
}

}  // namespace cleave
