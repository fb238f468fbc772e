// `integers`: masks and ids that cross a cut, exactly: each value minus the tensor's minimum, in as
// few bits as the largest one needs. A mask of zeros and ones takes one bit per element, and one
// that is the same everywhere takes none.
//
// A payload has the bits per code (1 byte), the minimum (8 bytes, little-endian), and the codes:
// dense up to 16 bits (packing.h), otherwise little-endian integers of 32 or 64 bits.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "compression/codecs.h"
#include "compression/parts/packing.h"
#include "compression/parts/strips.h"

namespace cleave {
namespace {

constexpr std::size_t kIntegersHeader = 1 + sizeof(std::uint64_t);
constexpr int kMaxDenseBits = 16;

std::size_t codeBytes(std::size_t count, int bits) {
  return bits <= kMaxDenseBits ? (count * static_cast<std::size_t>(bits) + 7) / 8
                               : count * static_cast<std::size_t>(bits / 8);
}

int bitsFor(std::uint64_t largest) {
  const auto bits = static_cast<int>(std::bit_width(largest));
  return bits <= kMaxDenseBits ? bits : bits <= 32 ? 32 : 64;
}

std::uint64_t load(const std::byte* from, std::size_t bytes) {
  std::uint64_t value = 0;
  std::memcpy(&value, from, bytes);
  return value;
}

// Calls work(first element, count) for each strip: its dense codes fill whole bytes.
template <typename Work>
void forStrips(const CodecContext& context, std::size_t elements, const Work& work) {
  for (std::size_t begin = 0; begin < elements; begin += kStripElements) {
    context.checkpoint();
    work(begin, std::min(kStripElements, elements - begin));
  }
}

class Integers : public Codec {
 public:
  std::string spec() const override { return "integers"; }
  bool acceptsIntegers() const override { return true; }
  std::size_t maxEncodedBytes(const TensorSpec& spec) const override {
    return kIntegersHeader + spec.bytes();
  }
  // Of a mask of zeros and ones.
  std::size_t expectedBytes(const TensorSpec& spec) const override {
    return kIntegersHeader + codeBytes(spec.elements(), 1);
  }

  Encoded encode(const CodecContext& context, const CodecState&, CutContext&,
                 const TensorView& view, std::span<std::byte> out) const override {
    const auto* data = static_cast<const std::byte*>(view.data);
    const std::size_t count = view.spec.elements();
    if (count == 0) return {};
    std::int64_t smallest = 0, largest = 0;
    for (std::size_t e = 0; e < count; ++e) {
      const auto value = static_cast<std::int64_t>(load(data + 8 * e, 8));
      smallest = e == 0 ? value : std::min(smallest, value);
      largest = e == 0 ? value : std::max(largest, value);
    }
    // Differences wrap modulo 2^64, as decode() adds them.
    const auto minimum = static_cast<std::uint64_t>(smallest);
    const int bits = bitsFor(static_cast<std::uint64_t>(largest) - minimum);
    out[0] = static_cast<std::byte>(bits);
    std::memcpy(&out[1], &minimum, sizeof minimum);
    std::byte* codes = out.data() + kIntegersHeader;
    const auto codeOf = [&](std::size_t e) { return load(data + 8 * e, 8) - minimum; };
    forStrips(context, count, [&](std::size_t begin, std::size_t n) {
      std::byte* const strip = codes + codeBytes(begin, bits);
      if (bits > kMaxDenseBits) {
        const auto width = static_cast<std::size_t>(bits / 8);
        for (std::size_t e = 0; e < n; ++e) {
          const std::uint64_t code = codeOf(begin + e);
          std::memcpy(strip + e * width, &code, width);
        }
      } else if (bits > 0) {
        std::array<std::uint16_t, kStripElements> dense;
        for (std::size_t e = 0; e < n; ++e)
          dense[e] = static_cast<std::uint16_t>(codeOf(begin + e));
        pack(dense.data(), n, bits, strip);
      }
    });
    return {kIntegersHeader + codeBytes(count, bits), nullptr};
  }

  CodecState decode(const CodecContext& context, const CodecState&, CutContext&,
                    std::span<const std::byte> bytes, MutableTensorView out) const override {
    const std::size_t count = out.spec.elements();
    if (count == 0) {
      checkPayloadSize(*this, context.key, bytes.size(), 0);
      return nullptr;
    }
    if (bytes.size() < kIntegersHeader) {
      throwBadPayload(*this, context.key, "it has no header");
    }
    const int bits = std::to_integer<int>(bytes[0]);
    if (bits > kMaxDenseBits && bits != 32 && bits != 64) {
      throwBadPayload(*this, context.key, std::to_string(bits) + " bits per code");
    }
    checkPayloadSize(*this, context.key, bytes.size(), kIntegersHeader + codeBytes(count, bits));
    const std::uint64_t minimum = load(&bytes[1], 8);
    const std::byte* codes = bytes.data() + kIntegersHeader;
    auto* data = static_cast<std::byte*>(out.data);
    forStrips(context, count, [&](std::size_t begin, std::size_t n) {
      const std::byte* const strip = codes + codeBytes(begin, bits);
      const auto put = [&](std::size_t e, std::uint64_t code) {
        const std::uint64_t value = minimum + code;
        std::memcpy(data + 8 * (begin + e), &value, sizeof value);
      };
      if (bits > kMaxDenseBits) {
        const auto width = static_cast<std::size_t>(bits / 8);
        for (std::size_t e = 0; e < n; ++e) put(e, load(strip + e * width, width));
      } else {
        std::array<std::uint16_t, kStripElements> dense{};  // the codes of 0 bits
        if (bits > 0) unpack(strip, n, bits, dense.data());
        for (std::size_t e = 0; e < n; ++e) put(e, dense[e]);
      }
    });
    return nullptr;
  }
};

}  // namespace

std::unique_ptr<Codec> makeIntegers(const CodecSpec& spec) {
  CodecParameters(spec).finish();
  return std::make_unique<Integers>();
}

}  // namespace cleave
