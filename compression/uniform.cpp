// `uniform:bits=B`: each element as one of 2^B even steps from the tensor's least value to its
// greatest.
//
//   payload = nothing                                for a tensor without elements
//           | 0x00, the tensor's own bytes           where packing would not make it shorter
//           | 0x01, min: fp32, step: fp32, codes     B bits a code, lowest bit and byte first
//
// Which of the three, and so the length, follows from the tensor's spec. An element decodes to
// min + step * code. min is +0 rather than -0. All arithmetic is fp32, rounded as IEEE 754 says,
// but for tensors whose range overflows it, which take double.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "common/codec/raw.h"
#include "compression/codecs.h"
#include "compression/convert.h"
#include "compression/kernels/plain.h"
#include "compression/pieces.h"

namespace cleave {
namespace {

using kernels::Grid;
using kernels::Range;

constexpr std::byte kPacked{1};
constexpr std::size_t kFormatBytes = 1;
constexpr std::size_t kHeaderBytes = kFormatBytes + 2 * sizeof(float);

// At any width their codes fill whole bytes.
static_assert(kPieceElements % 8 == 0);

// ---- Tensors whose range, or whose grid's, overflows fp32 ----

void quantizeWide(const float* values, std::size_t count, Grid grid, int bits, std::byte* out) {
  constexpr double kNoFraction = 0x1p52;  // doubles have none from here on: adding it rounds
  std::array<std::uint16_t, kPieceElements> codes;
  const double top = (1 << bits) - 1;
  for (std::size_t start = 0; start < count; start += codes.size()) {
    const std::size_t here = std::min(codes.size(), count - start);
    for (std::size_t j = 0; j < here; ++j) {
      const double exact = (double{values[start + j]} - double{grid.min}) / double{grid.step};
      codes[j] = static_cast<std::uint16_t>((std::min(exact, top) + kNoFraction) - kNoFraction);
    }
    kernels::plain::pack(codes.data(), here, bits, out + kernels::packedBytes(start, bits));
  }
}

float valueWide(Grid grid, int code) {
  return static_cast<float>(double{grid.min} + double{grid.step} * code);
}

void dequantizeWide(const std::byte* in, std::size_t count, Grid grid, int bits, float* values) {
  std::array<std::uint16_t, kPieceElements> codes;
  for (std::size_t start = 0; start < count; start += codes.size()) {
    const std::size_t here = std::min(codes.size(), count - start);
    kernels::plain::unpack(in + kernels::packedBytes(start, bits), here, bits, codes.data());
    for (std::size_t j = 0; j < here; ++j) values[start + j] = valueWide(grid, codes[j]);
  }
}

bool isWide(Grid grid, int top) { return !std::isfinite(grid.step * static_cast<float>(top)); }

// Whether the grid's least and greatest values, and so all between, are finite in `dtype`.
bool isFinite(Grid grid, int top, DType dtype) {
  const float greatest =
      isWide(grid, top) ? valueWide(grid, top) : grid.min + grid.step * static_cast<float>(top);
  std::array<float, 2> values = {grid.min, greatest};
  std::array<std::byte, sizeof(values)> converted;
  fromFloat(values.data(), values.size(), dtype, converted.data());
  toFloat(converted.data(), dtype, values.size(), values.data());
  return std::isfinite(values[0]) && std::isfinite(values[1]);
}

Grid gridOf(Range range, int top) {
  Grid grid;
  grid.min = range.least + 0.0f;  // -0 + 0 = +0
  grid.step = (range.greatest - grid.min) / static_cast<float>(top);
  if (!std::isfinite(grid.step)) {
    // With one bit, even the step may not fit; then the upper value is less than the tensor's
    // greatest.
    const double step = (double{range.greatest} - double{grid.min}) / top;
    grid.step = static_cast<float>(std::min(step, double{std::numeric_limits<float>::max()}));
  }
  // A step that was rounded up may take the greatest value past the largest float.
  while (!isFinite(grid, top, DType::f32)) grid.step = std::nextafter(grid.step, 0.0f);
  return grid;
}

class Uniform : public Codec {
 public:
  explicit Uniform(int bits) : bits_(bits), top_((1 << bits) - 1) {}

  std::string spec() const override { return "uniform:bits=" + std::to_string(bits_); }

  // What a payload has exactly.
  std::size_t maxEncodedBytes(const TensorSpec& spec) const override {
    return isPacked(spec) ? packedPayloadBytes(spec) : rawPayloadBytes(spec);
  }

  Encoded encode(const CodecContext& context, const CodecState&, CutContext&,
                 const TensorView& view, std::span<std::byte> out) const override {
    const Range range = rangeOf(view);
    if (!range.finite) throw NonFiniteError(context.key);
    if (!isPacked(view.spec)) return encodeRaw(view, out);
    const Grid grid = gridOf(range, top_);
    out[0] = kPacked;
    std::memcpy(out.data() + kFormatBytes, &grid.min, sizeof(float));
    std::memcpy(out.data() + kFormatBytes + sizeof(float), &grid.step, sizeof(float));
    std::byte* const codes = out.data() + kHeaderBytes;
    const std::size_t elements = view.spec.elements();
    if (grid.step == 0) {
      std::memset(codes, 0, kernels::packedBytes(elements, bits_));
    } else {
      const bool wide = !std::isfinite(range.greatest - range.least);
      const auto quantize = wide ? quantizeWide : kernels::quantize;
      forEachPiece(view.data, view.spec.dtype, elements,
                   [&](std::size_t start, std::size_t count, const float* values) {
                     quantize(values, count, grid, bits_,
                              codes + kernels::packedBytes(start, bits_));
                   });
    }
    return {packedPayloadBytes(view.spec), nullptr};
  }

  CodecState decode(const CodecContext& context, const CodecState&, CutContext&,
                    std::span<const std::byte> bytes, MutableTensorView out) const override {
    if (decodeRaw(bytes, out)) return nullptr;
    checkPayloadSize(*this, context.key, bytes.size(), maxEncodedBytes(out.spec));
    if (bytes[0] != kPacked || !isPacked(out.spec)) throwBadFormat(*this, context.key, bytes, out);
    Grid grid;
    std::memcpy(&grid.min, bytes.data() + kFormatBytes, sizeof(float));
    std::memcpy(&grid.step, bytes.data() + kFormatBytes + sizeof(float), sizeof(float));
    if (!std::isfinite(grid.min) || !std::isfinite(grid.step) || grid.step < 0 ||
        !isFinite(grid, top_, out.spec.dtype)) {
      throwBadPayload(
          *this, context.key,
          "its min and step leave the finite values of " + std::string(dtypeName(out.spec.dtype)));
    }
    const auto dequantize = isWide(grid, top_) ? dequantizeWide : kernels::dequantize;
    const std::byte* const codes = bytes.data() + kHeaderBytes;
    makeEachPiece(out.data, out.spec.dtype, out.spec.elements(),
                  [&](std::size_t start, std::size_t count, float* values) {
                    dequantize(codes + kernels::packedBytes(start, bits_), count, grid, bits_,
                               values);
                  });
    return nullptr;
  }

 private:
  std::size_t packedPayloadBytes(const TensorSpec& spec) const {
    return kHeaderBytes + kernels::packedBytes(spec.elements(), bits_);
  }
  bool isPacked(const TensorSpec& spec) const {
    return packedPayloadBytes(spec) < rawPayloadBytes(spec);
  }

  const int bits_;
  const int top_;  // the greatest code
};

}  // namespace

std::unique_ptr<Codec> makeUniform(const CodecSpec& spec) {
  CodecParameters parameters(spec);
  const int bits = parameters.integer("bits", 1, 16);
  parameters.finish();
  return std::make_unique<Uniform>(bits);
}

}  // namespace cleave
