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
#include <optional>

#include "compression/codecs.h"
#include "compression/convert.h"

namespace cleave {
namespace {

constexpr std::byte kRaw{0};
constexpr std::byte kPacked{1};
constexpr std::size_t kFormatBytes = 1;
constexpr std::size_t kHeaderBytes = kFormatBytes + 2 * sizeof(float);

// Elements that are worked on at once: they stay in the first-level cache, and at any width their
// codes fill whole bytes.
constexpr std::size_t kBlock = 1024;
constexpr std::size_t kLanes = 16;
static_assert(kBlock % kLanes == 0 && kLanes % 8 == 0);

struct Range {
  float least, greatest;
};

// How codes map to values.
struct Grid {
  float min, step;
};

// Nothing where an element is NaN or infinite. Requires elements.
std::optional<Range> rangeOf(const TensorView& view) {
  const std::size_t elements = view.spec.elements();
  alignas(64) std::array<float, kBlock> block;
  // The lanes are independent of each other, so that the compiler may use vectors without
  // reordering anything.
  alignas(64) std::array<float, kLanes> least;
  alignas(64) std::array<float, kLanes> greatest;
  least.fill(std::numeric_limits<float>::infinity());
  greatest.fill(-std::numeric_limits<float>::infinity());
  bool finite = true;
  for (std::size_t start = 0; start < elements; start += kBlock) {
    const std::size_t count = std::min(kBlock, elements - start);
    toFloat(view.data + start * dtypeBytes(view.spec.dtype), view.spec.dtype, count, block.data());
    const std::size_t padded = (count + kLanes - 1) / kLanes * kLanes;
    std::fill(block.begin() + count, block.begin() + padded, block[0]);
    for (std::size_t j = 0; j < padded; j += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const float x = block[j + lane];
        least[lane] = x < least[lane] ? x : least[lane];
        greatest[lane] = x > greatest[lane] ? x : greatest[lane];
      }
    }
    // x - x is NaN, which equals nothing, just where x is not finite.
    unsigned nonFinite = 0;
    for (std::size_t j = 0; j < padded; ++j) nonFinite |= !(block[j] - block[j] == 0);
    finite = finite && nonFinite == 0;
  }
  if (!finite) return std::nullopt;
  return Range{*std::min_element(least.begin(), least.end()),
               *std::max_element(greatest.begin(), greatest.end())};
}

// Real is float, or double where the tensor's range overflows float. `codes` are in 0…top.
template <typename Real>
void quantise(const float* values, std::size_t count, Grid grid, int top, std::int32_t* codes) {
  // Numbers from here on have no fraction bits: adding it rounds to an integer, ties to even.
  constexpr Real kNoFraction = 1 / std::numeric_limits<Real>::epsilon();
  const Real min = grid.min, step = grid.step, most = static_cast<Real>(top);
  for (std::size_t j = 0; j < count; ++j) {
    const Real exact = (values[j] - min) / step;
    // A value is beyond the last code only where the step is subnormal, so coarsely rounded, or did
    // not fit a float.
    const Real bounded = exact < most ? exact : most;
    codes[j] = static_cast<std::int32_t>((bounded + kNoFraction) - kNoFraction);
  }
}

// The inverse, for Real as above.
template <typename Real>
void dequantise(const std::int32_t* codes, std::size_t count, Grid grid, float* values) {
  const Real min = grid.min, step = grid.step;
  for (std::size_t j = 0; j < count; ++j) {
    values[j] = static_cast<float>(min + step * static_cast<Real>(codes[j]));
  }
}

void dequantise(const std::int32_t* codes, std::size_t count, Grid grid, int top, float* values) {
  const bool overflows = !std::isfinite(grid.step * static_cast<float>(top));
  if (overflows) return dequantise<double>(codes, count, grid, values);
  dequantise<float>(codes, count, grid, values);
}

// Whether the grid's least and greatest values, and so all between, are finite in `dtype`.
bool isFinite(Grid grid, int top, DType dtype) {
  std::array<float, 2> values = {grid.min, 0};
  dequantise(&top, 1, grid, top, &values[1]);
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

// Codes of `bits` each, the first in the lowest bits of the first byte; the last byte is filled up
// with zeros.
void pack(const std::int32_t* codes, std::size_t count, int bits, std::byte* out) {
  if (bits == 8) {
    for (std::size_t j = 0; j < count; ++j) out[j] = static_cast<std::byte>(codes[j]);
    return;
  }
  if (bits == 16) {
    for (std::size_t j = 0; j < count; ++j) {
      const auto code = static_cast<std::uint16_t>(codes[j]);
      std::memcpy(out + 2 * j, &code, 2);
    }
    return;
  }
  std::uint64_t pending = 0;
  int held = 0;
  for (std::size_t j = 0; j < count; ++j) {
    pending |= static_cast<std::uint64_t>(codes[j]) << held;
    held += bits;
    if (held < 32) continue;
    std::memcpy(out, &pending, 4);
    out += 4;
    pending >>= 32;
    held -= 32;
  }
  std::memcpy(out, &pending, static_cast<std::size_t>(held + 7) / 8);
}

// Reads (count * bits + 7) / 8 bytes at `in`.
void unpack(const std::byte* in, std::size_t count, int bits, std::int32_t* codes) {
  if (bits == 8) {
    for (std::size_t j = 0; j < count; ++j) codes[j] = static_cast<std::uint8_t>(in[j]);
    return;
  }
  if (bits == 16) {
    for (std::size_t j = 0; j < count; ++j) {
      std::uint16_t code;
      std::memcpy(&code, in + 2 * j, 2);
      codes[j] = code;
    }
    return;
  }
  const std::byte* const end = in + (count * static_cast<std::size_t>(bits) + 7) / 8;
  const std::uint32_t mask = (std::uint32_t{1} << bits) - 1;
  std::uint64_t pending = 0;
  int held = 0;
  for (std::size_t j = 0; j < count; ++j) {
    if (held < bits) {
      std::uint32_t word = 0;
      if (end - in >= 4) {
        std::memcpy(&word, in, 4);
      } else {
        std::memcpy(&word, in, static_cast<std::size_t>(end - in));
      }
      in += std::min<std::ptrdiff_t>(4, end - in);
      pending |= static_cast<std::uint64_t>(word) << held;
      held += 32;
    }
    codes[j] = static_cast<std::int32_t>(pending & mask);
    pending >>= bits;
    held -= bits;
  }
}

class Uniform : public Codec {
 public:
  explicit Uniform(int bits) : bits_(bits), top_((1 << bits) - 1) {}

  std::string spec() const override { return "uniform:bits=" + std::to_string(bits_); }

  // What a payload has exactly.
  std::size_t maxEncodedBytes(const TensorSpec& spec) const override {
    if (spec.elements() == 0) return 0;
    return isPacked(spec) ? kHeaderBytes + codeBytes(spec.elements()) : kFormatBytes + spec.bytes();
  }

  Encoded encode(const CodecContext& context, const CodecState&, CutContext&,
                 const TensorView& view, std::span<std::byte> out) const override {
    const Encoded encoded{maxEncodedBytes(view.spec), nullptr};
    if (encoded.bytes == 0) return encoded;
    const std::optional<Range> range = rangeOf(view);
    if (!range) throw NonFiniteError(context.key);
    if (isPacked(view.spec)) {
      encodePacked(view, *range, out.data());
    } else {
      out[0] = kRaw;
      std::memcpy(out.data() + kFormatBytes, view.data, view.spec.bytes());
    }
    return encoded;
  }

  CodecState decode(const CodecContext& context, const CodecState&, CutContext&,
                    std::span<const std::byte> bytes, MutableTensorView out) const override {
    checkPayloadSize(*this, context.key, bytes.size(), maxEncodedBytes(out.spec));
    if (bytes.empty()) return nullptr;
    if (bytes[0] != (isPacked(out.spec) ? kPacked : kRaw)) {
      throwBadPayload(*this, context.key,
                      "format " + std::to_string(std::to_integer<int>(bytes[0])) +
                          " does not belong to " + toString(out.spec));
    }
    if (isPacked(out.spec)) {
      decodePacked(context, bytes.data(), out);
    } else {
      std::memcpy(out.data, bytes.data() + kFormatBytes, out.spec.bytes());
      const bool finite = rangeOf({out.data, out.spec}).has_value();
      if (!finite) throwBadPayload(*this, context.key, "a value is not finite");
    }
    return nullptr;
  }

 private:
  std::size_t codeBytes(std::size_t elements) const {
    return (elements * static_cast<std::size_t>(bits_) + 7) / 8;
  }

  bool isPacked(const TensorSpec& spec) const {
    return kHeaderBytes + codeBytes(spec.elements()) < kFormatBytes + spec.bytes();
  }

  void encodePacked(const TensorView& view, Range range, std::byte* out) const {
    const Grid grid = gridOf(range, top_);
    out[0] = kPacked;
    std::memcpy(out + kFormatBytes, &grid.min, sizeof(float));
    std::memcpy(out + kFormatBytes + sizeof(float), &grid.step, sizeof(float));
    std::byte* const codesOut = out + kHeaderBytes;
    const std::size_t elements = view.spec.elements();
    if (grid.step == 0) {
      std::memset(codesOut, 0, codeBytes(elements));
      return;
    }
    const bool overflows = !std::isfinite(range.greatest - range.least);
    const auto quantiseBlock = overflows ? quantise<double> : quantise<float>;
    alignas(64) std::array<float, kBlock> values;
    alignas(64) std::array<std::int32_t, kBlock> codes;
    for (std::size_t start = 0; start < elements; start += kBlock) {
      const std::size_t count = std::min(kBlock, elements - start);
      toFloat(view.data + start * dtypeBytes(view.spec.dtype), view.spec.dtype, count,
              values.data());
      quantiseBlock(values.data(), count, grid, top_, codes.data());
      pack(codes.data(), count, bits_, codesOut + codeBytes(start));
    }
  }

  void decodePacked(const CodecContext& context, const std::byte* bytes,
                    MutableTensorView out) const {
    Grid grid;
    std::memcpy(&grid.min, bytes + kFormatBytes, sizeof(float));
    std::memcpy(&grid.step, bytes + kFormatBytes + sizeof(float), sizeof(float));
    if (!std::isfinite(grid.min) || !std::isfinite(grid.step) || grid.step < 0 ||
        !isFinite(grid, top_, out.spec.dtype)) {
      throwBadPayload(
          *this, context.key,
          "its min and step leave the finite values of " + std::string(dtypeName(out.spec.dtype)));
    }
    const std::size_t elements = out.spec.elements();
    alignas(64) std::array<float, kBlock> values;
    alignas(64) std::array<std::int32_t, kBlock> codes;
    for (std::size_t start = 0; start < elements; start += kBlock) {
      const std::size_t count = std::min(kBlock, elements - start);
      unpack(bytes + kHeaderBytes + codeBytes(start), count, bits_, codes.data());
      dequantise(codes.data(), count, grid, top_, values.data());
      fromFloat(values.data(), count, out.spec.dtype,
                out.data + start * dtypeBytes(out.spec.dtype));
    }
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
