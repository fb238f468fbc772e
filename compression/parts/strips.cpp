#include "compression/parts/strips.h"

namespace cleave {

bool isAlignedFloat(const std::byte* data, DType dtype) {
  return dtype == DType::f32 && reinterpret_cast<std::uintptr_t>(data) % alignof(float) == 0;
}

const float* FloatReader::read(std::size_t start, std::size_t count, float* scratch) const {
  const std::byte* const from = data_ + start * dtypeBytes(dtype_);
  if (isAlignedFloat(from, dtype_)) return reinterpret_cast<const float*>(from);
  toFloat(from, dtype_, count, scratch);
  return scratch;
}

}  // namespace cleave
