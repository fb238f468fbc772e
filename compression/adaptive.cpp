// `adaptive:bits=B,size=S`: like `block`, but blocks with a larger range get more bits per value: B
// on average.
//
//   payload = nothing                        for a tensor without elements
//           | 0x00, the tensor's own bytes   if packing might not make it shorter
//           | 0x01, headers, widths, codes
//   headers = min, step: both bf16, of each block of S values; the last block may have fewer
//   widths  = bits per value of each block: 0…8, 4 bits each, lowest first; the last byte is padded
//             with zeros
//   codes   = of each block: its width's bits per value, lowest bit and byte first; its last byte
//             is padded with zeros
//
// min, step and codes are those of `block:bits=WIDTH,size=S`, and so are the decoded values. All
// values of a block of width 0 become min, the middle of its range rounded down; its step is 0.
//
// The codes take at most B / 8 bytes per value, rounded up. To minimise the squared error, the
// widths must make the errors of all blocks about equal: each further bit halves a block's step. A
// block's key is its maximum - minimum in fp32, rounded towards zero to bf16, read as an integer:
// it grows by 128 if the range doubles. With a threshold T, which is the smallest for which the
// codes are short enough, a block has the largest width w with T + kRise[w] <= key; blocks with a
// key of 0 have width 0.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "compression/codecs.h"
#include "compression/kernels/kernels.h"
#include "compression/kernels/plain.h"
#include "compression/parts/payload.h"
#include "compression/parts/strips.h"

namespace cleave {
namespace {

constexpr std::byte kAdaptive{1};
constexpr std::size_t kHeaderBytes = kernels::kBlockHeaderBytes;
constexpr int kMaxWidth = 8;
constexpr std::size_t kDefaultSize = 64;
constexpr std::size_t kMinBlock = 32;
constexpr std::size_t kMaxStripBlocks = kStripElements / kMinBlock;

// Differences between the keys from which widths 2…8 are used: the keys at which one more bit
// reduces the squared error of a normal distribution by the same amount. Width 1 is not used: its
// error is larger than that of width 0. Width 2 starts 0.6 octaves earlier than for a normal
// distribution, because the values of ReLU are far from the middle of their range.
constexpr std::array<int, 9> kRise = {0, 0, 0, 157, 317, 459, 590, 718, 846};
constexpr int kKeys = 0x8000;

// The widths of a tensor's blocks, and the place of each strip's codes.
struct Layout {
  std::vector<std::uint8_t> widths;
  std::vector<std::size_t> strips;  // offset of the first code of each kStripElements values
  std::size_t codeBytes = 0;
};

class Adaptive : public Codec {
 public:
  Adaptive(double bits, std::size_t size) : bits_(bits), size_(size) {}

  std::string spec() const override {
    std::string text = "adaptive:bits=" + shortestText(bits_);
    if (size_ != kDefaultSize) text += ",size=" + std::to_string(size_);
    return text;
  }

  std::size_t maxEncodedBytes(const TensorSpec& spec) const override {
    return std::min(codesStart(spec.elements()) + maxCodeBytes(spec.elements()),
                    rawPayloadBytes(spec));
  }

  CodecMemory memory(const TensorSpec& spec) const override {
    const std::size_t elements = spec.elements();
    const std::size_t strips = elements / kStripElements + 1;
    return {.working = blocksOf(elements) * (sizeof(std::uint16_t) + sizeof(std::uint8_t)) +
                       strips * sizeof(std::size_t)};
  }

  Encoded encode(const CodecContext& context, const CodecState&, CutContext&,
                 const TensorView& view, std::span<std::byte> out) const override {
    const std::size_t elements = view.spec.elements();
    if (isRaw(view.spec)) return encodeFiniteRaw(context, view, out);
    const FloatReader values(view);
    const Layout layout = layoutOf(chooseWidths(findKeys(context, values), elements), elements);
    out[0] = kAdaptive;
    writeWidths(layout.widths, &out[widthsStart(elements)]);
    forEachStrip(context, values, [&](std::size_t start, std::size_t count, const float* strip) {
      encodeStrip(layout, start, count, strip, &out[kFormatBytes], &out[codesStart(elements)]);
    });
    return {codesStart(elements) + layout.codeBytes, nullptr};
  }

  CodecState decode(const CodecContext& context, const CodecState&, CutContext&,
                    std::span<const std::byte> bytes, MutableTensorView out) const override {
    if (decodeRaw(bytes, out)) return nullptr;
    const std::size_t elements = out.spec.elements();
    if (elements == 0 || bytes.size() < codesStart(elements))
      throwBadPayload(*this, context.key, "its length does not match " + toString(out.spec));
    if (bytes[0] != kAdaptive || isRaw(out.spec))
      throwBadFormat(*this, context.key, bytes, out.spec);
    std::vector<std::uint8_t> widths = readWidths(&bytes[widthsStart(elements)], elements);
    if (*std::max_element(widths.begin(), widths.end()) > kMaxWidth)
      throwBadPayload(*this, context.key, "a width exceeds 8");
    const Layout layout = layoutOf(std::move(widths), elements);
    if (layout.codeBytes > maxCodeBytes(elements))
      throwBadPayload(*this, context.key, "its widths exceed the number of bits");
    checkPayloadSize(*this, context.key, bytes.size(), codesStart(elements) + layout.codeBytes);
    const float limit = largestOf(out.spec.dtype);
    const bool valid =
        makeEachStrip(context, out, [&](std::size_t start, std::size_t count, float* strip) {
          return decodeStrip(layout, start, count, &bytes[kFormatBytes],
                             bytes.data() + codesStart(elements), limit, strip);
        });
    if (!valid) {
      throwBadPayload(*this, context.key,
                      "a block's min is not finite, or its step is negative or not finite");
    }
    return nullptr;
  }

 private:
  bool isRaw(const TensorSpec& spec) const {
    return maxEncodedBytes(spec) == rawPayloadBytes(spec);
  }
  std::size_t blocksOf(std::size_t elements) const { return (elements + size_ - 1) / size_; }
  std::size_t widthsStart(std::size_t elements) const {
    return kFormatBytes + blocksOf(elements) * kHeaderBytes;
  }
  std::size_t codesStart(std::size_t elements) const {
    return widthsStart(elements) + (blocksOf(elements) + 1) / 2;
  }
  std::size_t maxCodeBytes(std::size_t elements) const {
    return static_cast<std::size_t>(std::ceil(bits_ * static_cast<double>(elements) / 8));
  }
  // Values in block b.
  std::size_t countIn(std::size_t b, std::size_t elements) const {
    return std::min(size_, elements - b * size_);
  }

  std::vector<std::uint16_t> findKeys(const CodecContext& context,
                                      const FloatReader& values) const {
    std::vector<std::uint16_t> keys(blocksOf(values.size()));
    const bool finite = forEachStrip<kLongStripElements>(
        context, values, [&](std::size_t start, std::size_t count, const float* strip) {
          for (std::size_t j = 0; j < count; j += size_) {
            const kernels::Range range = kernels::rangeOf(strip + j, std::min(size_, count - j));
            if (!range.finite) return false;
            const auto bits = std::bit_cast<std::uint32_t>(range.max - range.min);
            keys[(start + j) / size_] = static_cast<std::uint16_t>(bits >> 16);
          }
          return true;
        });
    if (!finite) throw NonFiniteError(context.key);
    return keys;
  }

  static int widthOf(int key, int threshold) {
    int width = 0;
    for (int w = 2; w <= kMaxWidth; ++w)
      if (key > 0 && key >= threshold + kRise[static_cast<std::size_t>(w)]) width = w;
    return width;
  }

  std::vector<std::uint8_t> chooseWidths(const std::vector<std::uint16_t>& keys,
                                         std::size_t elements) const {
    // Whole blocks with at least this key. The last block may have fewer values.
    std::vector<std::size_t> atLeast(kKeys + 1);
    for (std::size_t b = 0; b + 1 < keys.size(); ++b) ++atLeast[keys[b]];
    for (std::size_t key = kKeys; key-- > 0;) atLeast[key] += atLeast[key + 1];
    const std::size_t lastCount = countIn(keys.size() - 1, elements);
    const auto codeBytes = [&](int threshold) {
      std::size_t width = 0;  // of all whole blocks together
      for (std::size_t w = 2; w <= kMaxWidth; ++w) {
        const int key = std::clamp(threshold + kRise[w], 1, kKeys);
        width += (w == 2 ? 2 : 1) * atLeast[static_cast<std::size_t>(key)];
      }
      return width * (size_ / 8) + packedBytes(lastCount, widthOf(keys.back(), threshold));
    };
    int low = 1 - kRise[kMaxWidth];  // every key but 0 has the maximum width
    int high = kKeys;                // all widths are 0
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (codeBytes(middle) <= maxCodeBytes(elements)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    std::vector<std::uint8_t> widths(keys.size());
    for (std::size_t b = 0; b < keys.size(); ++b)
      widths[b] = static_cast<std::uint8_t>(widthOf(keys[b], low));
    return widths;
  }

  Layout layoutOf(std::vector<std::uint8_t> widths, std::size_t elements) const {
    Layout layout;
    layout.strips.reserve(elements / kStripElements + 1);
    for (std::size_t b = 0; b < widths.size(); ++b) {
      if (b * size_ % kStripElements == 0) layout.strips.push_back(layout.codeBytes);
      layout.codeBytes += packedBytes(countIn(b, elements), widths[b]);
    }
    layout.widths = std::move(widths);
    return layout;
  }

  static void writeWidths(const std::vector<std::uint8_t>& widths, std::byte* out) {
    for (std::size_t b = 0; b < widths.size(); b += 2) {
      const int second = b + 1 < widths.size() ? widths[b + 1] : 0;
      out[b / 2] = static_cast<std::byte>(widths[b] | second << 4);
    }
  }

  std::vector<std::uint8_t> readWidths(const std::byte* in, std::size_t elements) const {
    std::vector<std::uint8_t> widths(blocksOf(elements));
    for (std::size_t b = 0; b < widths.size(); ++b)
      widths[b] = std::to_integer<std::uint8_t>(in[b / 2] >> b % 2 * 4 & std::byte{15});
    return widths;
  }

  // The blocks of a strip that have one width, gathered so that a kernel processes all at once.
  struct Gathered {
    std::size_t count = 0;
    std::array<std::size_t, kMaxStripBlocks> blocks;  // their numbers within the strip
    alignas(64) std::array<float, kStripElements> values;
    std::array<std::byte, kMaxStripBlocks * kHeaderBytes> headers;
    std::array<std::byte, kStripElements> codes;
  };

  // Calls use(width, gathered) for each width from 1 on that occurs, with its blocks' numbers.
  template <typename Use>
  bool forEachWidth(std::span<const std::uint8_t> widths, const Use& use) const {
    Gathered gathered;
    for (int width = 1; width <= kMaxWidth; ++width) {
      gathered.count = 0;
      for (std::size_t b = 0; b < widths.size(); ++b)
        if (widths[b] == width) gathered.blocks[gathered.count++] = b;
      if (gathered.count > 0 && !use(width, gathered)) return false;
    }
    return true;
  }

  // Where a strip's blocks are in the payload.
  struct Strip {
    std::span<const std::uint8_t> widths;
    std::size_t headers;                             // offset of the first header
    std::array<std::size_t, kMaxStripBlocks> codes;  // offset of each block's codes
  };
  Strip stripAt(const Layout& layout, std::size_t start, std::size_t count) const {
    Strip strip{std::span(layout.widths).subspan(start / size_, blocksOf(count)),
                start / size_ * kHeaderBytes,
                {}};
    std::size_t offset = layout.strips[start / kStripElements];
    for (std::size_t b = 0; b < strip.widths.size(); ++b) {
      strip.codes[b] = offset;
      offset += packedBytes(countIn(b, count), strip.widths[b]);
    }
    return strip;
  }

  // Requires finite values.
  void encodeStrip(const Layout& layout, std::size_t start, std::size_t count, const float* values,
                   std::byte* headers, std::byte* codes) const {
    const Strip strip = stripAt(layout, start, count);
    headers += strip.headers;
    for (std::size_t b = 0; b < strip.widths.size(); ++b) {
      if (strip.widths[b] != 0) continue;
      const kernels::Range range = kernels::rangeOf(values + b * size_, countIn(b, count));
      const float middle = range.min / 2 + range.max / 2;
      const float min = kernels::plain::blockGrid({middle, middle}, 1, false).min;
      const std::uint32_t header = kernels::plain::blockHeader({min, 0}, false);
      std::memcpy(headers + b * kHeaderBytes, &header, kHeaderBytes);
    }
    forEachWidth(strip.widths, [&](int width, Gathered& gathered) {
      for (std::size_t g = 0; g < gathered.count; ++g) {
        const float* const in = values + gathered.blocks[g] * size_;
        float* const block = &gathered.values[g * size_];
        // A shorter block is padded with one of its own values, which changes neither min nor step.
        std::fill(std::copy_n(in, countIn(gathered.blocks[g], count), block), block + size_, in[0]);
      }
      const kernels::BlockFormat format{size_, width};
      kernels::encodeBlocks(gathered.values.data(), gathered.count, format, 0,
                            gathered.headers.data(), gathered.codes.data());
      for (std::size_t g = 0; g < gathered.count; ++g) {
        const std::size_t b = gathered.blocks[g];
        std::memcpy(headers + b * kHeaderBytes, &gathered.headers[g * kHeaderBytes], kHeaderBytes);
        const std::size_t bits = countIn(b, count) * static_cast<std::size_t>(width);
        std::byte* const out = codes + strip.codes[b];
        std::memcpy(out, &gathered.codes[g * packedBytes(size_, width)], (bits + 7) / 8);
        if (bits % 8 != 0) out[bits / 8] &= static_cast<std::byte>((1 << bits % 8) - 1);
      }
      return true;
    });
  }

  // Returns false if a header is invalid.
  bool decodeStrip(const Layout& layout, std::size_t start, std::size_t count,
                   const std::byte* headers, const std::byte* codes, float limit,
                   float* values) const {
    const Strip strip = stripAt(layout, start, count);
    headers += strip.headers;
    for (std::size_t b = 0; b < strip.widths.size(); ++b) {
      if (strip.widths[b] != 0) continue;
      kernels::QuantGrid grid;
      if (!kernels::plain::blockGridOf(headers + b * kHeaderBytes, false, grid)) return false;
      std::fill_n(values + b * size_, countIn(b, count), std::clamp(grid.min, -limit, limit));
    }
    return forEachWidth(strip.widths, [&](int width, Gathered& gathered) {
      const std::size_t blockBytes = packedBytes(size_, width);
      for (std::size_t g = 0; g < gathered.count; ++g) {
        const std::size_t b = gathered.blocks[g];
        const std::size_t bytes = packedBytes(countIn(b, count), width);
        std::memcpy(&gathered.headers[g * kHeaderBytes], headers + b * kHeaderBytes, kHeaderBytes);
        std::byte* const block = &gathered.codes[g * blockBytes];
        std::memcpy(block, codes + strip.codes[b], bytes);
        std::fill(block + bytes, block + blockBytes, std::byte{0});
      }
      const kernels::BlockFormat format{size_, width};
      if (!kernels::decodeBlocks(gathered.headers.data(), gathered.codes.data(), gathered.count,
                                 format, limit, gathered.values.data()))
        return false;
      for (std::size_t g = 0; g < gathered.count; ++g) {
        const std::size_t b = gathered.blocks[g];
        std::copy_n(&gathered.values[g * size_], countIn(b, count), values + b * size_);
      }
      return true;
    });
  }

  const double bits_;
  const std::size_t size_;
};

}  // namespace

std::unique_ptr<Codec> makeAdaptive(const CodecSpec& spec) {
  CodecParameters parameters(spec);
  const double bits = parameters.number("bits", 0.5, 8);
  constexpr std::array<std::string_view, 6> kSizes = {"32", "64", "128", "256", "512", "1024"};
  const std::size_t size = kMinBlock << parameters.choice("size", kSizes, 1);
  parameters.finish();
  return std::make_unique<Adaptive>(bits, size);
}

}  // namespace cleave
