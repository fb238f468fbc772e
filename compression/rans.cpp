// `rans(CODEC)`: another codec's payload, compressed without loss by asymmetric numeral systems
// (rANS; Duda, arXiv 1311.2540), a form of entropy coding: frequent bytes take fewer bits. The
// states are interleaved as in Giesen, arXiv 1402.3392.
//
//   payload    as in lossless_codec.h, compressed if that makes it shorter
//   compressed = size: u64           bytes of CODEC's payload
//              , size: u32           of each segment in compressed form
//              , segments            each encodes 65536 bytes of CODEC's payload; the last one
//                                    encodes the rest
//   segment    = its bytes           if its size is their number; otherwise it is smaller, and
//              | stride: u8          1…4
//              , tables              one for each j % stride of the positions j in the segment
//              , 12 states: u32
//              , words: u16 each
//   table      = bitmap: 32 bytes    bit b % 8 of byte b / 8: byte value b occurs
//              , its frequency - 1   of each value that occurs, ascending: one byte if below 128,
//                                    else the low 7 bits + 128, then the rest
//
// A table's frequencies add up to 4096. Byte j of a segment is decoded with the table j % stride
// from the state x = states[j % 12]; start is the sum of the frequencies of all smaller values:
//
//   the value whose start <= x % 4096 < start + frequency
//   x = frequency * (x / 4096) + x % 4096 - start
//   x = 65536 x + the next word, if x < 65536
//
// At the end all words have been used and every state is 65536. The encoder makes these steps
// backwards, from the last byte to the first. It chooses the stride with the shortest result: 4 for
// fp32 values and for the headers of `block`, 2 for bf16, 3 for codes of 3 bits, for example.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "compression/codecs.h"
#include "compression/lossless_codec.h"

namespace cleave {
namespace {

constexpr std::size_t kSegmentBytes = 65536;
constexpr std::size_t kMinHelpedSegments = 4;  // fewer are not worth waking another thread
constexpr std::size_t kTurnSegments = 32;      // between checkpoints: a few milliseconds
constexpr std::size_t kSizeBytes = sizeof(std::uint64_t);
constexpr std::size_t kSegmentSizeBytes = sizeof(std::uint32_t);

constexpr int kScaleBits = 12;
constexpr std::uint32_t kScale = 1u << kScaleBits;
constexpr std::uint32_t kLow = 1u << 16;  // states are in kLow…2^32 - 1 between steps
constexpr std::size_t kStates = 12;
constexpr std::size_t kMaxStride = 4;  // kStates is a multiple of every stride
constexpr std::size_t kValues = 256;
constexpr std::size_t kBitmapBytes = kValues / 8;
constexpr std::size_t kStatesBytes = kStates * sizeof(std::uint32_t);
constexpr std::size_t kMaxHeadBytes = 1 + kMaxStride * (kBitmapBytes + 2 * kValues) + kStatesBytes;

using Bytes = std::span<const std::byte>;
using Counts = std::array<std::uint32_t, kValues>;  // of each byte value
using Frequencies = std::array<std::uint32_t, kValues>;

std::size_t segmentsOf(std::size_t bytes) { return (bytes + kSegmentBytes - 1) / kSegmentBytes; }

template <typename Word>
Word load(const std::byte* in) {
  Word word;
  std::memcpy(&word, in, sizeof word);
  return word;
}
template <typename Word>
void store(Word word, std::byte* out) {
  std::memcpy(out, &word, sizeof word);
}

// ---- Counts ----

// Counts the values at positions j separately for each j % kStates.
std::array<Counts, kStates> countsOf(Bytes bytes) {
  std::array<Counts, kStates> counts{};
  std::size_t j = 0;
  for (; j + kStates <= bytes.size(); j += kStates) {
    for (std::size_t k = 0; k < kStates; ++k)
      ++counts[k][std::to_integer<std::size_t>(bytes[j + k])];
  }
  for (std::size_t k = 0; j < bytes.size(); ++j, ++k)
    ++counts[k][std::to_integer<std::size_t>(bytes[j])];
  return counts;
}

// The counts for one table of this stride.
Counts countsFor(const std::array<Counts, kStates>& counts, std::size_t stride, std::size_t table) {
  Counts sums{};
  for (std::size_t k = table; k < kStates; k += stride) {
    for (std::size_t value = 0; value < kValues; ++value) sums[value] += counts[k][value];
  }
  return sums;
}

std::uint32_t sumOf(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), 0u);
}

// ---- Sizes ----
// Estimated in fixed-point integers, so that all machines make the same choice.

constexpr int kLogBits = 16;      // fraction bits of a logarithm
constexpr int kLogTableBits = 9;  // significant bits of its argument, after the first

constexpr auto kLogFractions = [] {
  std::array<std::uint32_t, 1 << kLogTableBits> fractions{};
  for (std::uint64_t j = 0; j < fractions.size(); ++j) {
    std::uint64_t x = (fractions.size() + j) << (31 - kLogTableBits);  // in 2^31…2^32 - 1
    for (int bit = 0; bit < kLogBits; ++bit) {
      x = x * x >> 31;
      fractions[j] = fractions[j] << 1 | static_cast<std::uint32_t>(x >> 32);
      x >>= x >> 32;
    }
  }
  return fractions;
}();

// count * log2(count)
std::uint64_t timesLog(std::uint32_t count) {
  if (count == 0) return 0;
  const auto exponent = static_cast<std::uint32_t>(std::bit_width(count)) - 1;
  const std::uint32_t place = count << (31 - exponent) >> (31 - kLogTableBits);
  const std::uint32_t fraction = kLogFractions[place - kLogFractions.size()];
  return std::uint64_t{count} * ((exponent << kLogBits) + fraction);
}

std::size_t tableBytes(const Counts& counts) {
  return kBitmapBytes +
         static_cast<std::size_t>(std::count_if(counts.begin(), counts.end(),
                                                [](std::uint32_t count) { return count > 0; }));
}

// Bytes of a segment with this stride.
std::size_t estimate(const std::array<Counts, kStates>& counts, std::size_t stride) {
  std::uint64_t bits = 0;
  std::size_t bytes = 1 + kStatesBytes;
  for (std::size_t table = 0; table < stride; ++table) {
    const Counts here = countsFor(counts, stride, table);
    bits += timesLog(sumOf(here));
    for (const std::uint32_t count : here) bits -= timesLog(count);
    bytes += tableBytes(here);
  }
  return bytes + (bits >> (kLogBits + 3));
}

// ---- Frequencies ----

// Scales counts to frequencies, which are at least 1 for values that occur. In integers only, so
// that all machines agree.
Frequencies frequenciesOf(const Counts& counts) {
  const std::uint32_t total = sumOf(counts);
  Frequencies frequencies{};
  std::uint32_t left = kScale;      // for the values with a share of at least half a frequency
  std::uint32_t leftCount = total;  // of those values
  for (std::size_t value = 0; value < kValues; ++value) {
    if (counts[value] == 0 || counts[value] * std::uint64_t{2} * kScale >= total) continue;
    frequencies[value] = 1;
    left -= 1;
    leftCount -= counts[value];
  }
  std::uint32_t sum = 0;
  for (std::size_t value = 0; value < kValues; ++value) {
    if (counts[value] != 0 && frequencies[value] == 0) {
      const std::uint64_t scaled =
          (std::uint64_t{counts[value]} * left + leftCount / 2) / leftCount;
      frequencies[value] = std::max<std::uint32_t>(static_cast<std::uint32_t>(scaled), 1);
    }
    sum += frequencies[value];
  }
  // Rounding leaves a small difference. Each unit of it goes to, or comes from, the value with the
  // largest ratio between its exact and its rounded frequency, or with the smallest.
  while (sum != kScale) {
    const bool grow = sum < kScale;
    std::size_t best = kValues;
    for (std::size_t value = 0; value < kValues; ++value) {
      if (counts[value] == 0 || (!grow && frequencies[value] == 1)) continue;
      if (best == kValues) best = value;
      const std::uint64_t here = std::uint64_t{counts[value]} * frequencies[best];
      const std::uint64_t there = std::uint64_t{counts[best]} * frequencies[value];
      if (grow ? here > there : here < there) best = value;
    }
    frequencies[best] += grow ? 1 : -1u;
    sum += grow ? 1 : -1u;
  }
  return frequencies;
}

// Writes the bitmap and the frequencies; returns their size.
std::size_t writeFrequencies(const Frequencies& frequencies, std::byte* out) {
  std::byte* at = out + kBitmapBytes;
  std::fill(out, at, std::byte{0});
  for (std::size_t value = 0; value < kValues; ++value) {
    if (frequencies[value] == 0) continue;
    out[value / 8] |= std::byte{1} << value % 8;
    const std::uint32_t stored = frequencies[value] - 1;
    *at++ = static_cast<std::byte>(stored < 128 ? stored : stored % 128 + 128);
    if (stored >= 128) *at++ = static_cast<std::byte>(stored / 128);
  }
  return static_cast<std::size_t>(at - out);
}

// Removes the bitmap and the frequencies from `segment`. Returns false if they are invalid.
bool readFrequencies(Bytes& segment, Frequencies& frequencies) {
  if (segment.size() < kBitmapBytes) return false;
  const Bytes bitmap = segment.first(kBitmapBytes);
  segment = segment.subspan(kBitmapBytes);
  const auto next = [&] {
    const auto byte = std::to_integer<std::uint32_t>(segment.front());
    segment = segment.subspan(1);
    return byte;
  };
  std::uint32_t sum = 0;
  for (std::size_t value = 0; value < kValues; ++value) {
    frequencies[value] = 0;
    if ((bitmap[value / 8] >> value % 8 & std::byte{1}) == std::byte{0}) continue;
    if (segment.empty()) return false;
    std::uint32_t stored = next();
    if (stored >= 128) {
      if (segment.empty()) return false;
      stored += 128 * next() - 128;
    }
    frequencies[value] = stored + 1;
    sum += frequencies[value];
  }
  return sum == kScale;
}

// ---- Segments ----

// x / frequency = x * reciprocal >> 44, exactly, for x < frequency * 2^20, without overflow.
struct EncoderEntry {
  std::uint64_t reciprocal = 0;
  std::uint32_t frequency = 0;
  std::uint32_t start = 0;
};
constexpr int kReciprocalBits = 44;

using EncoderTable = std::array<EncoderEntry, kValues>;

EncoderTable encoderTable(const Frequencies& frequencies) {
  EncoderTable entries;
  std::uint32_t start = 0;
  for (std::size_t value = 0; value < kValues; ++value) {
    const std::uint32_t frequency = frequencies[value];
    if (frequency == 0) continue;
    const std::uint64_t one = std::uint64_t{1} << kReciprocalBits;
    entries[value] = {(one + frequency - 1) / frequency, frequency, start};
    start += frequency;
  }
  return entries;
}

// Requires two bytes of room before `words`, which it moves to the last word written.
inline std::uint32_t encodeStep(std::uint32_t x, const EncoderEntry& entry, std::byte*& words) {
  // Without branches, because they could not be predicted.
  const std::uint32_t isFull = x >> (32 - kScaleBits) >= entry.frequency ? 1 : 0;
  store(static_cast<std::uint16_t>(x), words - 2);
  words -= std::size_t{2} * isFull;
  x >>= 16 * isFull;
  const auto quotient = static_cast<std::uint32_t>(x * entry.reciprocal >> kReciprocalBits);
  return x + quotient * (kScale - entry.frequency) + entry.start;
}

// Writes the segment to `out`, which has in.size() bytes; returns its size, which is in.size() if
// it is stored.
std::size_t encodeSegment(Bytes in, std::byte* out) {
  const auto stored = [&] {
    std::memcpy(out, in.data(), in.size());
    return in.size();
  };
  const std::array<Counts, kStates> counts = countsOf(in);
  std::size_t stride = 0;
  std::size_t minBytes = in.size();
  for (std::size_t s = 1; s <= kMaxStride; ++s) {
    const std::size_t bytes = estimate(counts, s);
    if (bytes < minBytes) {
      minBytes = bytes;
      stride = s;
    }
  }
  if (stride == 0) return stored();
  std::array<std::byte, kMaxHeadBytes> head;
  head[0] = static_cast<std::byte>(stride);
  std::size_t headBytes = 1;
  std::array<EncoderTable, kMaxStride> tables;
  for (std::size_t table = 0; table < stride; ++table) {
    const Frequencies frequencies = frequenciesOf(countsFor(counts, stride, table));
    headBytes += writeFrequencies(frequencies, &head[headBytes]);
    tables[table] = encoderTable(frequencies);
  }
  headBytes += kStatesBytes;
  std::array<const EncoderEntry*, kStates> entries;  // of each state's table
  for (std::size_t k = 0; k < kStates; ++k) entries[k] = tables[k % stride].data();
  std::array<std::uint32_t, kStates> states;
  states.fill(kLow);

  // The words are written from the end of the room, backwards, as long as the rest fits before
  // them.
  std::byte* words = out + in.size();
  const auto step = [&](std::size_t k, std::size_t j) {
    const EncoderEntry& entry = entries[k][std::to_integer<std::size_t>(in[j])];
    states[k] = encodeStep(states[k], entry, words);
  };
  const auto hasRoom = [&] {
    return static_cast<std::size_t>(words - out) >= headBytes + 2 * kStates;
  };
  if (!hasRoom()) return stored();
  std::size_t j = in.size() / kStates * kStates;
  for (std::size_t k = in.size() - j; k-- > 0;) step(k, j + k);
  while (j > 0) {
    if (!hasRoom()) return stored();
    j -= kStates;
    for (std::size_t k = kStates; k-- > 0;) step(k, j + k);
  }
  const std::size_t wordBytes = static_cast<std::size_t>(out + in.size() - words);
  if (headBytes + wordBytes >= in.size()) return stored();
  std::memcpy(&head[headBytes - kStatesBytes], states.data(), kStatesBytes);
  std::memmove(out + headBytes, words, wordBytes);
  std::memcpy(out, head.data(), headBytes);
  return headBytes + wordBytes;
}

// The value, frequency - 1, and x % 4096 - start, for each x % 4096.
using DecoderTable = std::array<std::uint32_t, kScale>;

void fillTable(const Frequencies& frequencies, DecoderTable& table) {
  std::uint32_t* entry = table.data();
  for (std::uint32_t value = 0; value < kValues; ++value) {
    for (std::uint32_t k = 0; k < frequencies[value]; ++k)
      *entry++ = value | (frequencies[value] - 1) << 8 | k << 20;
  }
}

// Returns the next value. The state then needs a word if it is below kLow.
inline std::byte decodeStep(const std::uint32_t* table, std::uint32_t& state) {
  const std::uint32_t entry = table[state % kScale];
  const std::uint32_t frequency = (entry >> 8 & (kScale - 1)) + 1;
  state = frequency * (state >> kScaleBits) + (entry >> 20);
  return static_cast<std::byte>(entry);
}

// Returns false if the segment is invalid.
bool decodeSegment(Bytes segment, std::span<std::byte> out) {
  if (segment.size() == out.size()) {
    std::memcpy(out.data(), segment.data(), out.size());
    return true;
  }
  if (segment.empty() || segment.size() > out.size()) return false;
  const auto stride = std::to_integer<std::size_t>(segment[0]);
  if (stride < 1 || stride > kMaxStride) return false;
  segment = segment.subspan(1);
  std::array<DecoderTable, kMaxStride> all;
  for (std::size_t table = 0; table < stride; ++table) {
    Frequencies frequencies;
    if (!readFrequencies(segment, frequencies)) return false;
    fillTable(frequencies, all[table]);
  }
  if (segment.size() < kStatesBytes) return false;
  std::array<const std::uint32_t*, kStates> tables;  // of each state
  for (std::size_t k = 0; k < kStates; ++k) tables[k] = all[k % stride].data();
  std::array<std::uint32_t, kStates> states;
  std::memcpy(states.data(), segment.data(), kStatesBytes);
  const std::byte* words = segment.data() + kStatesBytes;
  const std::byte* const end = segment.data() + segment.size();
  std::size_t j = 0;
  // Without branches, as long as there is a word for every state.
  while (j + kStates <= out.size() && end - words >= static_cast<std::ptrdiff_t>(2 * kStates)) {
#pragma GCC unroll 12
    for (std::size_t k = 0; k < kStates; ++k) {
      out[j + k] = decodeStep(tables[k], states[k]);
      const std::uint32_t isLow = states[k] < kLow ? 1 : 0;
      states[k] = states[k] << 16 * isLow | (load<std::uint16_t>(words) & (0 - isLow));
      words += std::size_t{2} * isLow;
    }
    j += kStates;
  }
  for (; j < out.size(); ++j) {
    std::uint32_t& state = states[j % kStates];
    out[j] = decodeStep(tables[j % kStates], state);
    if (state >= kLow) continue;
    if (end - words < 2) return false;
    state = state << 16 | load<std::uint16_t>(words);
    words += 2;
  }
  return words == end &&
         std::all_of(states.begin(), states.end(), [](std::uint32_t x) { return x == kLow; });
}

// Calls work(s) for the numbers of all segments, on two threads if the context has a helper.
template <typename Work>
void forSegments(const CodecContext& context, std::size_t segments, const Work& work) {
  const auto each = [&](std::size_t first, std::size_t last) {
    for (std::size_t s = first; s < last; ++s) work(s);
  };
  for (std::size_t first = 0; first < segments; first += kTurnSegments) {
    const std::size_t last = std::min(first + kTurnSegments, segments);
    if (context.helper == nullptr || last - first < kMinHelpedSegments) {
      each(first, last);
    } else {
      const std::size_t middle = first + (last - first) / 2;
      context.helper->run([&] { each(first, middle); }, [&] { each(middle, last); });
    }
    context.checkpoint();
  }
}

// Segment s of `bytes`.
template <typename Byte>
std::span<Byte> segmentAt(std::span<Byte> bytes, std::size_t s) {
  const std::size_t start = s * kSegmentBytes;
  return bytes.subspan(start, std::min(kSegmentBytes, bytes.size() - start));
}

class Rans : public LosslessCodec {
 public:
  using LosslessCodec::LosslessCodec;

  std::string spec() const override { return "rans(" + inner().spec() + ")"; }

 private:
  std::vector<std::byte> compress(const CodecContext& context, Bytes payload) const override {
    const std::size_t segments = segmentsOf(payload.size());
    const std::size_t sizesEnd = kSizeBytes + segments * kSegmentSizeBytes;
    std::vector<std::byte> out(sizesEnd + payload.size());
    store(std::uint64_t{payload.size()}, out.data());
    std::byte* const sizes = out.data() + kSizeBytes;
    std::byte* const start = out.data() + sizesEnd;
    forSegments(context, segments, [&](std::size_t s) {
      const std::size_t bytes = encodeSegment(segmentAt(payload, s), start + s * kSegmentBytes);
      store(static_cast<std::uint32_t>(bytes), sizes + s * kSegmentSizeBytes);
    });
    std::byte* end = start;
    for (std::size_t s = 0; s < segments; ++s) {
      const auto bytes = load<std::uint32_t>(sizes + s * kSegmentSizeBytes);
      std::memmove(end, start + s * kSegmentBytes, bytes);
      end += bytes;
    }
    const auto bytes = static_cast<std::size_t>(end - out.data());
    out.resize(bytes < payload.size() ? bytes : 0);
    return out;
  }

  std::vector<std::byte> decompress(const CodecContext& context, Bytes bytes,
                                    std::size_t maxBytes) const override {
    const auto refuse = [&](const std::string& fault) {
      throwBadPayload(*this, context.key, fault);
    };
    if (bytes.size() < kSizeBytes) refuse("it ends within its size");
    const auto size = load<std::uint64_t>(bytes.data());
    if (size > maxBytes) {
      refuse("it stands for " + std::to_string(size) + " bytes, but " + inner().spec() +
             " writes at most " + std::to_string(maxBytes));
    }
    bytes = bytes.subspan(kSizeBytes);
    const std::size_t segments = segmentsOf(size);
    if (bytes.size() / kSegmentSizeBytes < segments) refuse("it ends within its segments' sizes");
    const Bytes sizes = bytes.first(segments * kSegmentSizeBytes);
    bytes = bytes.subspan(sizes.size());
    std::vector<Bytes> segmentBytes(segments);
    for (std::size_t s = 0; s < segments; ++s) {
      const auto here = load<std::uint32_t>(&sizes[s * kSegmentSizeBytes]);
      if (here > bytes.size()) refuse("it ends within segment " + std::to_string(s));
      segmentBytes[s] = bytes.first(here);
      bytes = bytes.subspan(here);
    }
    if (!bytes.empty()) refuse("it has bytes after its last segment");
    std::vector<std::byte> payload(size);
    std::vector<std::uint8_t> valid(segments);
    forSegments(context, segments, [&](std::size_t s) {
      valid[s] = decodeSegment(segmentBytes[s], segmentAt(std::span(payload), s)) ? 1 : 0;
    });
    const auto invalid = std::find(valid.begin(), valid.end(), 0);
    if (invalid != valid.end())
      refuse("segment " + std::to_string(invalid - valid.begin()) + " is invalid");
    return payload;
  }
};

}  // namespace

std::unique_ptr<Codec> makeRans(const CodecSpec& spec) {
  CodecParameters parameters(spec);
  parameters.mayWrap();
  parameters.finish();
  return std::make_unique<Rans>(makeInner(spec, "rans(block:bits=4)"));
}

}  // namespace cleave
