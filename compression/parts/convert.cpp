#include "compression/parts/convert.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "compression/kernels/kernels.h"

namespace cleave {

void toFloat(const std::byte* in, DType dtype, std::size_t elements, float* out) {
  switch (dtype) {
    case DType::f32:
      if (elements > 0) std::memcpy(out, in, elements * sizeof(float));
      return;
    case DType::f16:
      return kernels::floatFromHalf(in, elements, out);
    case DType::bf16:
      return kernels::floatFromBf16(in, elements, out);
    case DType::i64:
      break;
  }
  throw std::logic_error("a floating-point codec received integers");
}

void fromFloat(const float* in, std::size_t elements, DType dtype, std::byte* out) {
  switch (dtype) {
    case DType::f32:
      if (elements > 0) std::memcpy(out, in, elements * sizeof(float));
      return;
    case DType::f16:
      return kernels::halfFromFloat(in, elements, out);
    case DType::bf16:
      return kernels::bf16FromFloat(in, elements, out);
    case DType::i64:
      break;
  }
  throw std::logic_error("a floating-point codec received integers");
}

void roundTo(DType dtype, std::span<float> values) {
  if (dtype == DType::f32) return;
  constexpr std::size_t kStrip = 256;
  std::array<std::byte, kStrip * sizeof(float)> rounded;
  for (std::size_t start = 0; start < values.size(); start += kStrip) {
    const std::size_t count = std::min(kStrip, values.size() - start);
    fromFloat(&values[start], count, dtype, rounded.data());
    toFloat(rounded.data(), dtype, count, &values[start]);
  }
}

float largestOf(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 65504;
    case DType::bf16:
      return 0x1.fep127f;
    case DType::f32:
    case DType::i64:
      break;
  }
  return std::numeric_limits<float>::max();
}

bool allFinite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

}  // namespace cleave
