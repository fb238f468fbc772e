#include "common/codec/snr.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace cleave {

std::optional<double> snrDb(const TensorView& original, const std::byte* decoded) {
  if (original.spec.dtype != DType::f32) return std::nullopt;
  double signal = 0;
  double noise = 0;
  for (std::size_t j = 0; j < original.spec.elements(); ++j) {
    float x = 0;
    float y = 0;
    std::memcpy(&x, original.data + j * sizeof x, sizeof x);
    std::memcpy(&y, decoded + j * sizeof y, sizeof y);
    const double difference = static_cast<double>(x) - static_cast<double>(y);
    signal += static_cast<double>(x) * static_cast<double>(x);
    noise += difference * difference;
  }
  if (!(noise > 0) || !(signal > 0)) return std::nullopt;
  constexpr double kLowest = -1000;  // also if a value is decoded as infinity
  return std::max(10 * std::log10(signal / noise), kLowest);
}

}  // namespace cleave
