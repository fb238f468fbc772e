// What the members of a cohort exchange about a batch: their parts, and the sum.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/engine/engine.h"
#include "common/model/stage/stage.h"

namespace cleave {

// The maximum size of a part with this many values.
constexpr std::size_t maxPartBytes(std::size_t values) {
  constexpr std::size_t kMetricBytes = 256 << 10;
  return sizeof(float) * values + kMetricBytes;
}

struct MemberPart {
  std::vector<float> values;  // see ClientStage::writeShare(); none in evaluation
  BatchMetrics metrics;
};

SharedBytes toBytes(const MemberPart& part);
// Throws ProtocolError "bad-metadata".
MemberPart partFromBytes(std::span<const std::byte> bytes);
// Adds the parts in their order. Each has no values, or `values`. Throws ProtocolError "bad-part"
// about the first member whose part does not fit.
SharedBytes sumOfParts(const std::vector<Blob>& parts, std::size_t values,
                       const std::vector<std::string>& names);

}  // namespace cleave
