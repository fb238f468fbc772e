#include "common/topology/step.h"

#include <algorithm>

namespace cleave {

std::uint32_t microBatchCount(std::uint32_t samples, std::uint32_t microBatches) {
  return std::min(samples, microBatches);
}

std::uint32_t microBatchSize(std::uint32_t samples, std::uint32_t count, std::uint32_t i) {
  return samples / count + (i < samples % count ? 1 : 0);
}

std::uint32_t microBatchOffset(std::uint32_t samples, std::uint32_t count, std::uint32_t i) {
  return i * (samples / count) + std::min(i, samples % count);
}

}  // namespace cleave
