// `uniform:bits=B`: each element as one of 2^B evenly spaced values from the tensor's minimum to
// its maximum.
//
//   payload = nothing                                for a tensor without elements
//           | 0x00, the tensor's own bytes           if packing would not make it shorter
//           | 0x01, min: fp32, step: fp32, codes     B bits per code, lowest bit and byte first
//
// The tensor's spec determines the form of the payload, and so its length. An element decodes to
// min + step * code. min is +0 rather than -0. All arithmetic is fp32 with IEEE 754 rounding,
// except for tensors whose range overflows fp32, which use double.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "compression/codecs.h"
#include "compression/kernels/plain.h"
#include "compression/packed_codec.h"
#include "compression/parts/convert.h"
#include "compression/parts/strips.h"

namespace cleave {
namespace {

using kernels::QuantGrid;
using kernels::Range;

constexpr std::size_t kGridBytes = 2 * sizeof(float);

// ---- Tensors whose range, or that of their grid, overflows fp32 ----

void quantizeWide(const float* values, std::size_t count, QuantGrid grid, int bits,
                  std::byte* out) {
  // Doubles of this magnitude have no fraction bits, so adding this number rounds to an integer.
  constexpr double kNoFraction = 0x1p52;
  std::array<std::uint16_t, kStripElements> codes;
  const double top = (1 << bits) - 1;
  for (std::size_t start = 0; start < count; start += codes.size()) {
    const std::size_t here = std::min(codes.size(), count - start);
    for (std::size_t j = 0; j < here; ++j) {
      const double exact = (double{values[start + j]} - double{grid.min}) / double{grid.step};
      codes[j] = static_cast<std::uint16_t>((std::min(exact, top) + kNoFraction) - kNoFraction);
    }
    kernels::plain::pack(codes.data(), here, bits, out + packedBytes(start, bits));
  }
}

float valueWide(QuantGrid grid, int code) {
  return static_cast<float>(double{grid.min} + double{grid.step} * code);
}

void dequantizeWide(const std::byte* in, std::size_t count, QuantGrid grid, int bits,
                    float* values) {
  std::array<std::uint16_t, kStripElements> codes;
  for (std::size_t start = 0; start < count; start += codes.size()) {
    const std::size_t here = std::min(codes.size(), count - start);
    kernels::plain::unpack(in + packedBytes(start, bits), here, bits, codes.data());
    for (std::size_t j = 0; j < here; ++j) values[start + j] = valueWide(grid, codes[j]);
  }
}

bool isWide(QuantGrid grid, int top) { return !std::isfinite(grid.step * static_cast<float>(top)); }

// Whether the grid's minimum and maximum, and therefore all values between them, are finite in
// `dtype`.
bool isFinite(QuantGrid grid, int top, DType dtype) {
  const float max =
      isWide(grid, top) ? valueWide(grid, top) : grid.min + grid.step * static_cast<float>(top);
  std::array<float, 2> values = {grid.min, max};
  std::array<std::byte, sizeof(values)> converted;
  fromFloat(values.data(), values.size(), dtype, converted.data());
  toFloat(converted.data(), dtype, values.size(), values.data());
  return std::isfinite(values[0]) && std::isfinite(values[1]);
}

QuantGrid gridOf(Range range, int top) {
  QuantGrid grid;
  grid.min = range.min + 0.0f;  // -0 + 0 = +0
  grid.step = (range.max - grid.min) / static_cast<float>(top);
  if (!std::isfinite(grid.step)) {
    // With one bit, the step itself may overflow; the upper value is then less than the tensor's
    // maximum.
    const double step = (double{range.max} - double{grid.min}) / top;
    grid.step = static_cast<float>(std::min(step, double{std::numeric_limits<float>::max()}));
  }
  // Rounding the step up may push the largest value beyond the largest float.
  while (!isFinite(grid, top, DType::f32)) grid.step = std::nextafter(grid.step, 0.0f);
  return grid;
}

class Uniform : public PackedCodec {
 public:
  explicit Uniform(int bits) : bits_(bits), top_((1 << bits) - 1) {}

  std::string spec() const override { return "uniform:bits=" + std::to_string(bits_); }

 private:
  std::size_t packedPayloadBytes(const TensorSpec& spec) const override {
    return kFormatBytes + kGridBytes + packedBytes(spec.elements(), bits_);
  }

  void encodePacked(const CodecContext& context, const TensorView& view,
                    std::byte* out) const override {
    const Range range = rangeOf(context, view);
    if (!range.finite) throw NonFiniteError(context.key);
    const QuantGrid grid = gridOf(range, top_);
    putFloat(out, grid.min);
    putFloat(out + sizeof(float), grid.step);
    std::byte* const codes = out + kGridBytes;
    if (grid.step == 0) {
      std::memset(codes, 0, packedBytes(view.spec.elements(), bits_));
      return;
    }
    const bool wide = !std::isfinite(range.max - range.min);
    const auto quantize = wide ? quantizeWide : kernels::quantize;
    forEachStrip<kLongStripElements>(
        context, FloatReader(view), [&](std::size_t start, std::size_t count, const float* values) {
          quantize(values, count, grid, bits_, codes + packedBytes(start, bits_));
        });
  }

  void decodePacked(const CodecContext& context, const std::byte* bytes,
                    MutableTensorView out) const override {
    const QuantGrid grid{getFloat(bytes), getFloat(bytes + sizeof(float))};
    if (!std::isfinite(grid.min) || !std::isfinite(grid.step) || grid.step < 0 ||
        !isFinite(grid, top_, out.spec.dtype)) {
      throwBadPayload(
          *this, context.key,
          "its min and step exceed the finite range of " + std::string(dtypeName(out.spec.dtype)));
    }
    const auto dequantize = isWide(grid, top_) ? dequantizeWide : kernels::dequantize;
    const std::byte* const codes = bytes + kGridBytes;
    makeEachStrip(context, out, [&](std::size_t start, std::size_t count, float* values) {
      dequantize(codes + packedBytes(start, bits_), count, grid, bits_, values);
    });
  }

  const int bits_;
  const int top_;  // the largest code
};

}  // namespace

int uniformBits(const CodecSpec& spec) {
  CodecParameters parameters(spec);
  const int bits = parameters.integer("bits", 1, 16);
  parameters.finish();
  return bits;
}

std::unique_ptr<Codec> makeUniform(const CodecSpec& spec) {
  return std::make_unique<Uniform>(uniformBits(spec));
}

}  // namespace cleave
