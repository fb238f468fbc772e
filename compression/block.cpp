// `block:bits=B,size=S,header=bf16|fp16,rounding=nearest|stochastic,rotation=none|hadamard`: blocks
// of S values that are adjacent in memory, each quantised to its own grid of 2^B values.
//
//   payload = nothing                              for a tensor without elements
//           | 0x00, the tensor's own bytes         if packing would not make it shorter
//           | 0x01, a header per block, codes      the last block may have fewer than S values
//   header  = min, step: both bf16 or both fp16
//   codes   = B bits per value, lowest bit and byte first, without gaps; the last byte is padded
//             with zeros
//
// The tensor's spec determines the form of the payload, and so its length. All values are computed
// in fp32, with IEEE 754 rounding:
//
//   min   = the block's minimum, rounded down to the header's type; +0 rather than -0
//   step  = (maximum - min) / (2^B - 1), at least 2^-126 unless 0, rounded up to the header's type
//   code  = (value - min) * (1 / step), rounded to nearest, ties to even
//   value = min + step * code, clamped to the finite values of the tensor's type
//
// Multiplying a tensor by a power of two therefore changes the exponents in its bf16 headers, but
// no code, as long as nothing is subnormal or infinite. If min or step exceeds the header's finite
// values, it becomes the nearest of them; in that case, and if maximum - min overflows, code is
// computed in double, as (value - min) / step clamped to 0…2^B - 1. If step * (2^B - 1) overflows,
// value is computed in double.
//
// Stochastic rounding adds u in [-1/2, 1/2) before rounding, and clamps the code, so that values
// are unbiased. u is a function of seed, step, micro-batch, flow and the element's index (modulo
// 2^32). Decoding is the same for both kinds of rounding. Evaluation rounds to nearest.
//
// With rotation=hadamard, each block x of S values is replaced by y = H (s x) / S before it is
// encoded, and becomes s (H y) after decoding; only s (H y) is clamped to the tensor's type. H is a
// Hadamard matrix, s are fixed signs; kernels.h defines both, and the order of the additions. A
// last block with fewer than S values is not rotated.
#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>

#include "common/core/random.h"
#include "compression/codecs.h"
#include "compression/kernels/kernels.h"
#include "compression/packed_codec.h"
#include "compression/parts/strips.h"

namespace cleave {
namespace {

constexpr int kMinSize = 32;
constexpr int kMaxSize = 1024;
static_assert(kStripElements % kMaxSize == 0);

class Block : public PackedCodec {
 public:
  Block(const kernels::BlockFormat& format, bool rotated) : format_(format), rotated_(rotated) {}

  std::string spec() const override {
    std::string text = "block:bits=" + std::to_string(format_.bits);
    const kernels::BlockFormat defaults;
    if (format_.size != defaults.size) text += ",size=" + std::to_string(format_.size);
    if (format_.halfHeader) text += ",header=fp16";
    if (format_.stochastic) text += ",rounding=stochastic";
    if (rotated_) text += ",rotation=hadamard";
    return text;
  }

 private:
  std::size_t headerBytes(std::size_t elements) const {
    return (elements + format_.size - 1) / format_.size * kernels::kBlockHeaderBytes;
  }

  std::size_t packedPayloadBytes(const TensorSpec& spec) const override {
    const std::size_t elements = spec.elements();
    return kFormatBytes + headerBytes(elements) + packedBytes(elements, format_.bits);
  }

  void encodePacked(const CodecContext& context, const TensorView& view,
                    std::byte* out) const override {
    kernels::BlockFormat format = format_;
    format.stochastic = format_.stochastic && context.key.phase == Phase::train;
    if (format.stochastic) {
      const Key& key = context.key;
      const RandomKey random =
          randomKey(context.seed, "block", {key.step, key.i, flowNumber(key.flow)});
      format.keyLow = random.low;
      format.keyHigh = random.high;
    }
    std::byte* const codes = out + headerBytes(view.spec.elements());
    const auto encode = [&](std::size_t start, std::size_t count, const float* values) {
      return encodeStrip(format, start, count, values, out, codes);
    };
    const auto rotateAndEncode = [&](std::size_t start, std::size_t count, const float* values) {
      alignas(64) std::array<float, kStripElements> rotated;
      const std::size_t whole = count / format.size * format.size;
      kernels::rotate(values, whole, format.size, rotated.data());
      std::copy(values + whole, values + count, rotated.data() + whole);
      return encode(start, count, rotated.data());
    };
    const FloatReader values(view);
    const bool finite = rotated_ ? forEachStrip(context, values, rotateAndEncode)
                                 : forEachStrip<kLongStripElements>(context, values, encode);
    if (!finite) throw NonFiniteError(context.key);
  }

  void decodePacked(const CodecContext& context, const std::byte* headers,
                    MutableTensorView out) const override {
    const std::byte* const codes = headers + headerBytes(out.spec.elements());
    const float limit = largestOf(out.spec.dtype);
    const bool valid =
        makeEachStrip(context, out, [&](std::size_t start, std::size_t count, float* values) {
          return decodeStrip(start, count, headers, codes, limit, values);
        });
    if (!valid) {
      throwBadPayload(*this, context.key,
                      "a block's min is not finite, or its step is negative or not finite");
    }
  }

  // A strip starts at a block boundary, and ends at one or at the tensor's end. Returns false if a
  // value is not finite.
  bool encodeStrip(const kernels::BlockFormat& format, std::size_t start, std::size_t count,
                   const float* values, std::byte* headers, std::byte* codes) const {
    assert(start % format.size == 0);
    headers += headerBytes(start);
    codes += packedBytes(start, format.bits);
    const std::size_t blocks = count / format.size;
    if (!kernels::encodeBlocks(values, blocks, format, start, headers, codes)) return false;
    const std::size_t whole = blocks * format.size;
    const std::size_t rest = count - whole;
    if (rest == 0) return true;
    // The last block is padded with one of its own values, which changes neither min nor step.
    std::array<float, kMaxSize> padded;
    std::array<std::byte, kMaxSize> packed;
    std::fill_n(std::copy_n(values + whole, rest, padded.begin()), format.size - rest,
                values[whole]);
    if (!kernels::encodeBlocks(padded.data(), 1, format, start + whole,
                               headers + headerBytes(whole), packed.data()))
      return false;
    const std::size_t bytes = packedBytes(rest, format.bits);
    const std::size_t usedBits =
        rest * static_cast<std::size_t>(format.bits) % 8;  // used bits of the last byte
    if (usedBits > 0) packed[bytes - 1] &= static_cast<std::byte>((1 << usedBits) - 1);
    std::memcpy(codes + packedBytes(whole, format.bits), packed.data(), bytes);
    return true;
  }

  bool decodeStrip(std::size_t start, std::size_t count, const std::byte* headers,
                   const std::byte* codes, float limit, float* values) const {
    assert(start % format_.size == 0);
    headers += headerBytes(start);
    codes += packedBytes(start, format_.bits);
    const std::size_t blocks = count / format_.size;
    const float blockLimit = rotated_ ? largestOf(DType::f32) : limit;
    if (!kernels::decodeBlocks(headers, codes, blocks, format_, blockLimit, values)) return false;
    const std::size_t whole = blocks * format_.size;
    if (rotated_) kernels::rotateBack(values, whole, format_.size, limit);
    const std::size_t rest = count - whole;
    if (rest == 0) return true;
    std::array<float, kMaxSize> padded;
    std::array<std::byte, kMaxSize> packed = {};
    std::memcpy(packed.data(), codes + packedBytes(whole, format_.bits),
                packedBytes(rest, format_.bits));
    if (!kernels::decodeBlocks(headers + headerBytes(whole), packed.data(), 1, format_, limit,
                               padded.data()))
      return false;
    std::copy_n(padded.begin(), rest, values + whole);
    return true;
  }

  const kernels::BlockFormat format_;
  const bool rotated_;
};

}  // namespace

BlockParameters blockParameters(const CodecSpec& spec) {
  CodecParameters parameters(spec);
  kernels::BlockFormat format;
  format.bits = parameters.integer("bits", 1, 8);
  constexpr std::array<std::string_view, 6> kSizes = {"32", "64", "128", "256", "512", "1024"};
  format.size = std::size_t{kMinSize} << parameters.choice("size", kSizes, 1);
  constexpr std::array<std::string_view, 2> kHeaders = {"bf16", "fp16"};
  format.halfHeader = parameters.choice("header", kHeaders, 0) == 1;
  constexpr std::array<std::string_view, 2> kRoundings = {"nearest", "stochastic"};
  format.stochastic = parameters.choice("rounding", kRoundings, 0) == 1;
  constexpr std::array<std::string_view, 2> kRotations = {"none", "hadamard"};
  const bool rotated = parameters.choice("rotation", kRotations, 0) == 1;
  parameters.finish();
  return {format, rotated};
}

std::unique_ptr<Codec> makeBlock(const CodecSpec& spec) {
  const BlockParameters parameters = blockParameters(spec);
  return std::make_unique<Block>(parameters.format, parameters.isRotated);
}

}  // namespace cleave
