// `sort:q=Q,s=S` and `fast:q=Q,s=S`: a tensor's values in sorted order, cut into 2^S pieces of
// equal count, each piece quantised uniformly with Q bits.
//
//   payload = nothing                              for a tensor without elements
//           | 0x00, the tensor's own bytes         if packing would not make it shorter
//           | 0x01, 2^S x (min: fp32, step: fp32), codes
//                                                  Q + S bits per code, lowest bit and byte first
//
// The tensor's spec determines the form of the payload, and so its length. A code is
// piece << Q | round((x - min) / step), and decodes to min + step * (code mod 2^Q) of its piece,
// computed in fp64 and rounded to fp32: by a table of 2^(Q+S) values. Pieces ascend; their counts
// differ by at most 1, larger first; a piece of equal values has step 0; min is +0 rather than -0.
//
// Encoders differ in how they choose the boundaries of pieces, which does not affect the format:
//   sort, select=exact           from all values, sorted
//   sort, select=sampled         from 4096 of them, sorted
//   fast, boundaries=first       from the first sample of the batch, sorted
//   fast, boundaries=all         as select=exact
// Exact pieces have the min and max of their values. Otherwise, the first piece begins at the
// tensor's minimum, each piece ends where the next begins, and the last ends at the tensor's
// maximum.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "compression/codecs.h"
#include "compression/packed_codec.h"
#include "compression/parts/convert.h"
#include "compression/parts/look_up.h"
#include "compression/parts/packing.h"
#include "compression/parts/piece_codes.h"
#include "compression/parts/selection.h"

namespace cleave {
namespace {

using kernels::Range;

constexpr std::size_t kPieceBytes = 2 * sizeof(float);
constexpr std::size_t kSamples = 4096;

enum class Boundaries { exact, sampled, firstSample };

// The minimum and maximum of each piece.
struct Pieces {
  std::vector<float> min, max;
};

// The rank at which piece p of `pieces` begins among `count` values.
std::size_t firstRank(std::size_t count, std::size_t pieces, std::size_t p) {
  return p * (count / pieces) + std::min(p, count % pieces);
}

Pieces exactPieces(const CodecContext& context, const FloatReader& values, std::size_t count,
                   Range range) {
  // The last rank of each piece and the first rank of the next.
  std::vector<std::size_t> ranks;
  for (std::size_t p = 1; p < count; ++p) {
    const std::size_t rank = firstRank(values.size(), count, p);
    ranks.insert(ranks.end(), {rank - 1, rank});
  }
  const std::vector<float> found = valuesAtRanks(context, values, ranks);
  Pieces pieces{{range.min}, {}};
  for (std::size_t k = 0; k < found.size(); k += 2) {
    pieces.max.push_back(found[k]);
    pieces.min.push_back(found[k + 1]);
  }
  pieces.max.push_back(range.max);
  return pieces;
}

Pieces piecesOfSubset(const CodecContext& context, const FloatReader& subset, std::size_t count,
                      Range range) {
  std::vector<std::size_t> ranks;
  for (std::size_t p = 1; p < count; ++p) {
    ranks.push_back(std::min(firstRank(subset.size(), count, p), subset.size() - 1));
  }
  Pieces pieces{{range.min}, {}};
  for (const float bound : valuesAtRanks(context, subset, ranks)) {
    pieces.max.push_back(bound);
    pieces.min.push_back(bound);
  }
  pieces.max.push_back(range.max);
  return pieces;
}

// Returns one element from each of kSamples equal stretches. Its position in the stretch follows
// the golden ratio, so that the samples do not coincide with a period of the tensor, such as its
// channels.
std::vector<float> samplesOf(const FloatReader& values) {
  std::vector<float> samples(kSamples);
  const std::size_t stretch = values.size() / kSamples;
  for (std::size_t j = 0; j < kSamples; ++j) {
    const auto fraction = static_cast<std::uint32_t>(j) * 0x9E3779B9u;
    samples[j] =
        values.at(j * stretch + static_cast<std::size_t>(static_cast<double>(fraction) * 0x1p-32 *
                                                         static_cast<double>(stretch)));
  }
  return samples;
}

float valueAt(float min, float step, int code) {
  return static_cast<float>(double{min} + double{step} * code);
}

// If the range overflows fp32, computes the step in fp64, and rounds it to at most the largest
// float.
float stepOf(float min, float max, int top) {
  const double range = double{max} - double{min};
  float step = (max - min) / static_cast<float>(top);
  if (!std::isfinite(step)) {
    step = static_cast<float>(std::min(range / top, double{std::numeric_limits<float>::max()}));
  }
  // Rounding the step up may push the largest value beyond the largest float.
  while (!std::isfinite(valueAt(min, step, top))) step = std::nextafter(step, 0.0f);
  return step;
}

class Sort : public PackedCodec {
 public:
  Sort(std::string name, int q, int s, Boundaries boundaries)
      : name_(std::move(name)), q_(q), s_(s), top_((1 << q) - 1), boundaries_(boundaries) {}

  std::string spec() const override { return name_; }
  // Selecting exact boundaries copies the values of some bins, and these copies grow as they are
  // filled.
  CodecMemory memory(const TensorSpec& spec) const override {
    return {4 * sizeof(float) * spec.elements(), 0, 0};
  }

 private:
  std::size_t pieceCount() const { return std::size_t{1} << s_; }
  std::size_t headerBytes() const { return pieceCount() * kPieceBytes; }

  // With this size, packed tensors have more elements than pieces.
  std::size_t packedPayloadBytes(const TensorSpec& spec) const override {
    return kFormatBytes + headerBytes() + packedBytes(spec.elements(), q_ + s_);
  }

  void encodePacked(const CodecContext& context, const TensorView& view,
                    std::byte* out) const override {
    const Range range = rangeOf(context, view);
    if (!range.finite) throw NonFiniteError(context.key);
    const Pieces pieces = piecesOf(context, view, range);
    const std::vector<float> steps = writeHeader(pieces, out);
    const FloatReader values(view);
    if (overflows(pieces)) {
      writeCodesOfWideRange(values, pieces, steps, out + headerBytes());
    } else if (q_ + s_ <= 8) {
      writeCodes<std::uint8_t>(context, values, pieces, steps, out + headerBytes());
    } else {
      writeCodes<std::uint16_t>(context, values, pieces, steps, out + headerBytes());
    }
  }

  void decodePacked(const CodecContext& context, const std::byte* bytes,
                    MutableTensorView out) const override {
    const std::vector<float> table = readTable(context, bytes, out.spec);
    const std::byte* const codes = bytes + headerBytes();
    const int bits = q_ + s_;
    const std::optional<kernels::PieceLines> lines = linesOf(bytes, table);
    if (!lines) return lookUp(context, codes, bits, table, out);
    makeEachStrip(context, out, [&](std::size_t start, std::size_t count, float* values) {
      std::array<std::uint8_t, kStripElements> scratch;
      kernels::valuesInPieces(bytesOfCodes(codes, start, count, bits, scratch), count, *lines,
                              values);
    });
  }

  // Computing values is several times as fast as looking them up, but may round differently than
  // the table. For nearly all tables the results are equal; otherwise the table is used.
  std::optional<kernels::PieceLines> linesOf(const std::byte* header,
                                             const std::vector<float>& table) const {
    if (q_ + s_ > 8 || pieceCount() > kernels::PieceLines::kMaxPieces) return std::nullopt;
    kernels::PieceLines lines{q_, s_, {}, {}};
    for (std::size_t p = 0; p < pieceCount(); ++p) {
      lines.mins[p] = getFloat(header + p * kPieceBytes);
      lines.steps[p] = getFloat(header + p * kPieceBytes + sizeof(float));
    }
    std::vector<std::uint8_t> codes(table.size());
    std::iota(codes.begin(), codes.end(), std::uint8_t{0});
    std::vector<float> computed(table.size());
    if (!kernels::valuesInPieces(codes.data(), codes.size(), lines, computed.data())) return {};
    const std::size_t size = table.size() * sizeof(float);
    if (std::memcmp(computed.data(), table.data(), size) != 0) return std::nullopt;
    return lines;
  }

  Pieces piecesOf(const CodecContext& context, const TensorView& view, Range range) const {
    const FloatReader values(view);
    if (boundaries_ == Boundaries::firstSample && view.spec.shape.size() > 1) {
      const auto samples = static_cast<std::size_t>(view.spec.shape[0]);
      return piecesOfSubset(context, FloatReader(view, values.size() / samples), pieceCount(),
                            range);
    }
    if (boundaries_ == Boundaries::sampled && values.size() > kSamples) {
      const std::vector<float> samples = samplesOf(values);
      const TensorView view1{reinterpret_cast<const std::byte*>(samples.data()),
                             {DType::f32, {static_cast<std::int64_t>(samples.size())}}};
      return piecesOfSubset(context, FloatReader(view1), pieceCount(), range);
    }
    return exactPieces(context, values, pieceCount(), range);
  }

  std::vector<float> writeHeader(const Pieces& pieces, std::byte* out) const {
    std::vector<float> steps;
    for (std::size_t p = 0; p < pieceCount(); ++p) {
      steps.push_back(stepOf(pieces.min[p], pieces.max[p], top_));
      putFloat(out + p * kPieceBytes, pieces.min[p]);
      putFloat(out + p * kPieceBytes + sizeof(float), steps[p]);
    }
    return steps;
  }

  static bool overflows(const Pieces& pieces) {
    for (std::size_t p = 0; p < pieces.min.size(); ++p) {
      if (!std::isfinite(pieces.max[p] - pieces.min[p])) return true;
    }
    return false;
  }

  template <typename Code>
  void writeCodes(const CodecContext& context, const FloatReader& values, const Pieces& pieces,
                  const std::vector<float>& steps, std::byte* out) const {
    PieceGrids grids;
    grids.bits = q_;
    grids.pieceBits = s_;
    for (std::size_t p = 0; p < pieceCount(); ++p) {
      grids.bounds[p] = grids.mins[p] = pieces.min[p];
      // With step 0, all codes must be 0. They are, because value - min is 0 or rounds to code 0.
      grids.divisors[p] = steps[p] == 0 ? 1 : steps[p];
    }
    grids.prepare();
    packCodes<Code>(context, values, grids, out);
  }

  // For values near the limits of fp32: computes in fp64.
  void writeCodesOfWideRange(const FloatReader& values, const Pieces& pieces,
                             const std::vector<float>& steps, std::byte* out) const {
    std::array<std::uint16_t, kStripElements> codes;
    forEachStrip(values, [&](std::size_t start, std::size_t count, const float* strip) {
      for (std::size_t j = 0; j < count; ++j) {
        const auto bound = std::upper_bound(pieces.min.begin() + 1, pieces.min.end(), strip[j]);
        const auto p = static_cast<std::size_t>(bound - pieces.min.begin() - 1);
        const double divisor = steps[p] == 0 ? 1 : steps[p];
        const double exact = std::min((double{strip[j]} - double{pieces.min[p]}) / divisor,
                                      static_cast<double>(top_));
        constexpr double kNoFraction = 1 / std::numeric_limits<double>::epsilon();
        const auto code = static_cast<unsigned>((exact + kNoFraction) - kNoFraction);
        codes[j] = static_cast<std::uint16_t>(p << q_ | code);
      }
      pack(codes.data(), count, q_ + s_, out + packedBytes(start, q_ + s_));
    });
  }

  std::vector<float> readTable(const CodecContext& context, const std::byte* in,
                               const TensorSpec& spec) const {
    std::vector<float> table(std::size_t{1} << (q_ + s_));
    for (std::size_t p = 0; p < pieceCount(); ++p) {
      const float min = getFloat(in + p * kPieceBytes);
      const float step = getFloat(in + p * kPieceBytes + sizeof(float));
      const bool valid = std::isfinite(min) && std::isfinite(step) && step >= 0;
      for (int code = 0; code <= top_; ++code) {
        table[(p << q_) + static_cast<std::size_t>(code)] =
            valid ? valueAt(min, step, code) : std::numeric_limits<float>::infinity();
      }
    }
    roundTo(spec.dtype, table);  // as writing the output would
    if (!allFinite(table)) {
      throwBadPayload(*this, context.key,
                      "a piece's min and step exceed the finite range of " +
                          std::string(dtypeName(spec.dtype)));
    }
    return table;
  }

  const std::string name_;
  const int q_, s_;
  const int top_;  // the largest code of a piece
  const Boundaries boundaries_;
};

using Names = std::array<std::string_view, 2>;
constexpr Names kSelects = {"sampled", "exact"};

SortParameters parametersOf(const CodecSpec& spec, std::string_view key, const Names& names) {
  CodecParameters parameters(spec);
  const int q = parameters.integer("q", 1, 16);
  const int s = parameters.integer("s", 0, 8);
  const std::size_t choice = parameters.choice(key, names, 0);
  parameters.finish();
  if (q + s > 16) {
    throw UsageError(
        "bad-codec-spec",
        "codec " + spec.name + ": q + s is " + std::to_string(q + s) + ", but the maximum is 16",
        "lower q or s");
  }
  return {q, s, choice};
}

std::unique_ptr<Codec> make(const CodecSpec& spec, std::string_view key, const Names& names,
                            std::array<Boundaries, 2> boundaries) {
  const auto [q, s, choice] = parametersOf(spec, key, names);
  std::string text = spec.name + ":q=" + std::to_string(q) + ",s=" + std::to_string(s) + "," +
                     std::string(key) + "=" + std::string(names[choice]);
  return std::make_unique<Sort>(std::move(text), q, s, boundaries[choice]);
}

}  // namespace

SortParameters sortParameters(const CodecSpec& spec) {
  return parametersOf(spec, "select", kSelects);
}

std::unique_ptr<Codec> makeSort(const CodecSpec& spec) {
  return make(spec, "select", kSelects, {Boundaries::sampled, Boundaries::exact});
}

std::unique_ptr<Codec> makeFast(const CodecSpec& spec) {
  return make(spec, "boundaries", {"first", "all"}, {Boundaries::firstSample, Boundaries::exact});
}

}  // namespace cleave
