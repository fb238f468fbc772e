// The layout of topk's payload, and the rule for which gradients reuse their activation's
// positions. Shared by the codec and its GPU implementation. The formats are specified at the top
// of topk.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "compression/parts/payload.h"
#include "compression/parts/positions.h"

namespace cleave {

class TopKLayout {
 public:
  static constexpr std::byte kBitmap{1};
  static constexpr std::byte kDistances{2};
  static constexpr std::byte kActivations{3};
  static constexpr double kMinRatio = 1e-6;

  // `ratio`: the fraction of elements that are kept, kMinRatio…1.
  explicit TopKLayout(double ratio) : ratio_(ratio) {}

  // k, the number of kept elements. Requires at least one element.
  std::size_t kept(std::size_t elements) const {
    const auto count = static_cast<std::size_t>(std::ceil(ratio_ * static_cast<double>(elements)));
    return std::clamp<std::size_t>(count, 1, elements);
  }
  // The size of the format byte and `count` values.
  static std::size_t valuesEnd(const TensorSpec& spec, std::size_t count) {
    return kFormatBytes + count * dtypeBytes(spec.dtype);
  }
  std::size_t withBitmap(const TensorSpec& spec) const {
    return valuesEnd(spec, kept(spec.elements())) + (spec.elements() + 7) / 8;
  }
  // Whether the values and a bitmap would take at least as many bytes as the tensor itself.
  bool isRaw(const TensorSpec& spec) const {
    return withBitmap(spec) >= kFormatBytes + spec.bytes();
  }

  // Returns the activation's positions that this gradient reuses. Null for an activation, and for a
  // gradient that selects its own positions.
  const Positions* positionsOfActivation(const Key& key, const CutContext& cut,
                                         std::size_t elements) const {
    if (!isGradient(key.flow) || !cut.value) return nullptr;
    const auto* positions = static_cast<const Positions*>(cut.value.get());
    const bool fits = positions->elements == elements && positions->kept <= kept(elements);
    return fits ? positions : nullptr;
  }
  // Whether this is an activation whose gradient can reuse its positions.
  static bool sharesPositions(const Key& key) {
    return !isGradient(key.flow) && key.phase == Phase::train;
  }
  static void sharePositions(const Key& key, CutContext& cut, Positions positions) {
    if (sharesPositions(key)) cut.value = std::make_shared<const Positions>(std::move(positions));
  }

 private:
  double ratio_;
};

}  // namespace cleave
