#include "compression/payload.h"

#include <algorithm>
#include <array>

#include "compression/codecs.h"
#include "compression/convert.h"
#include "compression/kernels/pieces.h"

namespace cleave {

const float* FloatReader::read(std::size_t start, std::size_t count, float* scratch) const {
  const std::byte* const from = data_ + start * dtypeBytes(dtype_);
  const bool aligned = reinterpret_cast<std::uintptr_t>(from) % alignof(float) == 0;
  if (dtype_ == DType::f32 && aligned) return reinterpret_cast<const float*>(from);
  toFloat(from, dtype_, count, scratch);
  return scratch;
}

Encoded encodeFiniteRaw(const CodecContext& context, const TensorView& view,
                        std::span<std::byte> out) {
  if (!extentOf(FloatReader(view)).finite) throw NonFiniteError(context.key);
  return encodeRaw(view, out);
}

void checkFormat(const Codec& codec, const CodecContext& context, std::span<const std::byte> bytes,
                 std::byte format, const TensorSpec& spec) {
  if (bytes[0] == format) return;
  throwBadPayload(codec, context.key,
                  "format " + std::to_string(std::to_integer<int>(bytes[0])) +
                      " does not belong to " + toString(spec));
}

}  // namespace cleave
