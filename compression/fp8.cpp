// `fp8:format=e4m3|e5m2`: every element as an 8-bit float times 2^E, with one E for the tensor.
//
//   payload = nothing                              for a tensor without elements
//           | 0x00, the tensor's own bytes         if packing would not make it shorter
//           | 0x01, E: int8, a byte per element    in memory order
//
// A byte is sign, exponent and mantissa as in the OCP 8-bit floating point specification (OFP8):
// e4m3 with bias 7 and a maximum of 448, e5m2 with bias 15 and a maximum of 57344. E is the
// smallest number in -126…120 for which the largest magnitude divided by 2^E is at most that
// maximum; 0 for a tensor of zeros. Rounding is to nearest, ties to even; signs are preserved,
// including that of zero. Decoded values beyond the finite range of the tensor's type are clamped
// to it. Infinity and NaN are not used: their codes are refused.
#include <bit>
#include <cmath>

#include "compression/codecs.h"
#include "compression/kernels/kernels.h"
#include "compression/packed_codec.h"
#include "compression/parts/strips.h"

namespace cleave {
namespace {

using kernels::Fp8;
using kernels::Range;

constexpr std::size_t kExponentBytes = 1;
constexpr int kMinExponent = -126;
constexpr int kMaxExponent = 120;

// The largest magnitude is 1.75 * 2^topExponent.
int topExponent(Fp8 format) { return format == Fp8::e4m3 ? 8 : 15; }

int exponentFor(float magnitude, Fp8 format) {
  if (magnitude == 0) return 0;
  int exponent;
  const float fraction = std::frexp(magnitude, &exponent);  // in [1/2, 1)
  exponent += fraction > 0.875f ? 0 : -1;
  return std::max(exponent - topExponent(format), kMinExponent);
}

class Fp8Cast : public PackedCodec {
 public:
  explicit Fp8Cast(Fp8 format) : format_(format) {}

  std::string spec() const override {
    return format_ == Fp8::e4m3 ? "fp8:format=e4m3" : "fp8:format=e5m2";
  }

 private:
  std::size_t packedPayloadBytes(const TensorSpec& spec) const override {
    return kFormatBytes + kExponentBytes + spec.elements();
  }

  void encodePacked(const CodecContext& context, const TensorView& view,
                    std::byte* out) const override {
    const Range range = rangeOf(context, view);
    if (!range.finite) throw NonFiniteError(context.key);
    const int exponent = exponentFor(std::max(-range.min, range.max), format_);
    out[0] = static_cast<std::byte>(exponent);
    forEachStrip<kLongStripElements>(
        context, FloatReader(view), [&](std::size_t start, std::size_t count, const float* values) {
          kernels::fp8FromFloat(values, count, format_, exponent, out + kExponentBytes + start);
        });
  }

  void decodePacked(const CodecContext& context, const std::byte* bytes,
                    MutableTensorView out) const override {
    const int exponent{std::bit_cast<std::int8_t>(bytes[0])};
    if (exponent < kMinExponent || exponent > kMaxExponent) {
      throwBadPayload(*this, context.key,
                      "exponent " + std::to_string(exponent) + " is not in " +
                          std::to_string(kMinExponent) + "…" + std::to_string(kMaxExponent));
    }
    const float limit = largestOf(out.spec.dtype);
    const bool finite =
        makeEachStrip(context, out, [&](std::size_t start, std::size_t count, float* values) {
          return kernels::floatFromFp8(bytes + kExponentBytes + start, count, format_, exponent,
                                       limit, values);
        });
    if (!finite) throwBadPayload(*this, context.key, "a value is not finite");
  }

  const Fp8 format_;
};

}  // namespace

std::unique_ptr<Codec> makeFp8(const CodecSpec& spec) {
  CodecParameters parameters(spec);
  constexpr std::array<std::string_view, 2> kFormats = {"e4m3", "e5m2"};
  const std::size_t format = parameters.choice("format", kFormats, 0);
  parameters.finish();
  return std::make_unique<Fp8Cast>(format == 0 ? Fp8::e4m3 : Fp8::e5m2);
}

}  // namespace cleave
