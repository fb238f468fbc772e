#include "compression/parts/payload.h"

#include <limits>

#include "compression/parts/strips.h"

namespace cleave {

kernels::Range rangeOf(const CodecContext& context, const TensorView& view) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::array<kernels::Range, 2> ranges;
  ranges.fill({kInfinity, -kInfinity});
  const FloatReader values(view);
  forEachPart(
      context, values.size(), [&](std::size_t part, std::size_t first, std::size_t elements) {
        kernels::Range& range = ranges[part];
        forEachStrip<kLongStripElements>(
            values, first, elements, [&](std::size_t, std::size_t count, const float* strip) {
              const kernels::Range here = kernels::rangeOf(strip, count);
              range.min = std::min(range.min, here.min);
              range.max = std::max(range.max, here.max);
              range.finite = range.finite && here.finite;
            });
      });
  return {std::min(ranges[0].min, ranges[1].min), std::max(ranges[0].max, ranges[1].max),
          ranges[0].finite && ranges[1].finite};
}

Encoded encodeFiniteRaw(const CodecContext& context, const TensorView& view,
                        std::span<std::byte> out) {
  if (!rangeOf(context, view).finite) throw NonFiniteError(context.key);
  return encodeRaw(view, out);
}

}  // namespace cleave
