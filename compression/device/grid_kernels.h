// Kernels of codecs with grids for the whole tensor (`uniform`, and `sort` with sampled pieces),
// and of casts.
#pragma once

#include "compression/device/tile.h"

namespace cleave::device {

inline constexpr std::uint32_t kMaxPieces = 256;
inline constexpr std::uint32_t kSamples = 4096;

// The range of a tensor found so far, as keys; the minimum's key is inverted, so that the initial
// state is all zeros.
struct RangeState {
  std::uint32_t invertedMin = 0;
  std::uint32_t max = 0;
  std::uint32_t faults = 0;  // not 0 if a value is not finite, or a kernel reports another fault

  CLEAVE_DEVICE float minValue() const { return valueOfKey(~invertedMin); }
  CLEAVE_DEVICE float maxValue() const { return valueOfKey(max); }
};
inline constexpr std::uint32_t kNotFinite = 1;
inline constexpr std::uint32_t kWide = 2;  // a range that overflows fp32

// Requires at least one element, and a state of zeros.
struct RangeKernel {
  static constexpr int kPhases = 2;
  struct Shared {
    std::uint32_t invertedMin[kThreads], max[kThreads], faults[kThreads];
  };
  struct Thread {};

  Input in;
  RangeState* state;

  std::uint32_t blocks() const { return tilesOf(in.elements); }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared& shared, Thread&) const {
    if constexpr (kPhase == 0) search(at, shared);
    if constexpr (kPhase == 1) join(at, shared);
  }

  CLEAVE_DEVICE void search(Place at, Shared& shared) const {
    const std::uint64_t start = tileStart(at.block);
    const float rest = valueOf(in, start);
    float min = rest, max = rest;
    bool finite = true;
    const ThreadQuads mine = readTile(in, start, at.thread, rest);
    CLEAVE_UNROLL
    for (std::uint32_t k = 0; k < kQuads; ++k) {
      CLEAVE_UNROLL
      for (const float x : mine.quads[k].x) {
        min = x < min ? x : min;
        max = x > max ? x : max;
        finite = finite && isFinite(x);
      }
    }
    shared.invertedMin[at.thread] = ~keyOf(min);
    shared.max[at.thread] = keyOf(max);
    shared.faults[at.thread] = finite ? 0 : kNotFinite;
  }

  CLEAVE_DEVICE void join(Place at, Shared& shared) const {
    if (at.thread >= 3) return;
    const std::uint32_t* const from = at.thread == 0   ? shared.invertedMin
                                      : at.thread == 1 ? shared.max
                                                       : shared.faults;
    std::uint32_t max = 0;
    for (std::uint32_t t = 0; t < kThreads; ++t) max = greater(max, from[t]);
    if (at.thread == 2 && max == 0) return;
    std::uint32_t& to = at.thread == 0   ? state->invertedMin
                        : at.thread == 1 ? state->max
                                         : state->faults;
    raise(to, max);
  }
};

// ---- The grids: computed by one or a few threads ----

// The grids that precede the codes in a payload of `uniform` or `sort`: min and step of each piece.
struct QuantGrids {
  RangeState range;
  float bounds[kMaxPieces];  // used from index 1 on
  QuantGrid grids[kMaxPieces];
};

struct UniformGridKernel {
  static constexpr int kPhases = 1;
  struct Shared {};
  struct Thread {};

  QuantGrids* grids;  // requires a known range
  int top;

  std::uint32_t blocks() const { return 1; }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared&, Thread&) const {
    RangeState& range = grids->range;
    if (at.thread > 0 || range.faults != 0) return;
    const float min = range.minValue(), max = range.maxValue();
    if (isFinite(max - min)) {
      grids->grids[0] = uniformGrid(min, max, top);
    } else {
      range.faults = kWide;
    }
  }
};

// The index of sample j among `elements`, as in sort.cpp.
CLEAVE_DEVICE inline std::uint64_t samplePlace(std::uint32_t j, std::uint64_t elements) {
  const std::uint64_t stretch = elements / kSamples;
  const std::uint32_t fraction = j * 0x9E3779B9u;
  return j * stretch + static_cast<std::uint64_t>(static_cast<double>(fraction) * 0x1p-32 *
                                                  static_cast<double>(stretch));
}

// Sets bounds[p] to the sample of rank p * kSamples / pieces. Each thread finds the rank of its
// samples by counting the smaller ones.
struct BoundsKernel {
  static constexpr int kPhases = 2;
  struct Shared {
    std::uint32_t keys[kSamples];
  };
  struct Thread {};

  Input in;  // more than kSamples elements, all finite
  QuantGrids* grids;
  std::uint32_t pieceBits;

  std::uint32_t blocks() const { return kSamples / kThreads; }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared& shared, Thread&) const {
    if constexpr (kPhase == 0) {
      for (std::uint32_t j = at.thread; j < kSamples; j += kThreads)
        shared.keys[j] = keyOf(valueOf(in, samplePlace(j, in.elements)));
    } else {
      choose(shared, at.block * kThreads + at.thread);
    }
  }

  CLEAVE_DEVICE void choose(const Shared& shared, std::uint32_t j) const {
    const std::uint32_t key = shared.keys[j];
    std::uint32_t rank = 0;
    for (std::uint32_t k = 0; k < kSamples; ++k)
      rank += shared.keys[k] < key || (shared.keys[k] == key && k < j) ? 1 : 0;
    const std::uint32_t perPiece = kSamples >> pieceBits;
    if (rank > 0 && rank % perPiece == 0) grids->bounds[rank / perPiece] = valueOfKey(key);
  }
};

struct PieceGridsKernel {
  static constexpr int kPhases = 1;
  struct Shared {};
  struct Thread {};

  QuantGrids* grids;  // requires a known range and known bounds
  std::uint32_t pieceBits;
  int top;

  std::uint32_t blocks() const { return 1; }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared&, Thread&) const {
    RangeState& range = grids->range;
    if (range.faults & kNotFinite) return;
    const std::uint32_t pieces = 1u << pieceBits;
    for (std::uint32_t p = at.thread; p < pieces; p += kThreads) {
      const float min = p == 0 ? range.minValue() : grids->bounds[p];
      const float max = p + 1 == pieces ? range.maxValue() : grids->bounds[p + 1];
      if (isFinite(max - min)) {
        grids->grids[p] = {min, pieceStep(min, max, top)};
      } else {
        raise(range.faults, kWide);
      }
    }
  }
};

// ---- Codes ----

// Quantises a tensor by its grids: piece << bits | code in the piece. Does nothing if there are
// faults.
struct QuantizeKernel {
  static constexpr int kPhases = 3;
  struct Shared {
    TileQuads tile;
    float bounds[kMaxPieces], mins[kMaxPieces], divisors[kMaxPieces];
  };
  struct Thread {};

  Input in;
  const QuantGrids* grids;
  std::uint32_t bits;       // per code in its piece
  std::uint32_t pieceBits;  // bits + pieceBits <= 16
  std::uint32_t* codes;     // codeBytes()

  std::uint32_t blocks() const { return tilesOf(in.elements); }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared& shared, Thread&) const {
    if (grids->range.faults != 0) return;
    if constexpr (kPhase == 0) prepare(at, shared);
    if constexpr (kPhase == 1) quantize(at, shared);
    if constexpr (kPhase == 2) writeWords(shared.tile, at, bits + pieceBits, codes);
  }

  CLEAVE_DEVICE void prepare(Place at, Shared& shared) const {
    for (std::uint32_t p = at.thread; p < 1u << pieceBits; p += kThreads) {
      const QuantGrid grid = grids->grids[p];
      shared.bounds[p] = shared.mins[p] = grid.min;
      // With step 0, all codes must be 0. They are, because value - min is 0 or rounds to code 0.
      shared.divisors[p] = grid.step == 0 ? 1 : grid.step;
    }
  }

  CLEAVE_DEVICE void quantize(Place at, Shared& shared) const {
    const std::uint64_t start = tileStart(at.block);
    const std::uint32_t codeBits = bits + pieceBits;
    const auto maxCode = static_cast<float>((1u << bits) - 1);
    const ThreadQuads mine = readTile(in, start, at.thread, shared.mins[0]);
    CLEAVE_UNROLL
    for (std::uint32_t k = 0; k < kQuads; ++k) {
      const std::uint32_t q = quadIndex(at.thread, k);
      const std::uint32_t count = countOf(in.elements, quadStart(at.block, q));
      std::uint64_t quad = 0;
      CLEAVE_UNROLL
      for (std::uint32_t j = 0; j < 4; ++j) {
        const float x = mine.quads[k].x[j];
        // The number of bounds <= x.
        std::uint32_t p = 0;
        for (std::uint32_t half = 1u << pieceBits >> 1; half > 0; half >>= 1)
          p += shared.bounds[p + half] <= x ? half : 0;
        const std::uint64_t code =
            p << bits | codeOf(x, shared.mins[p], shared.divisors[p], maxCode);
        quad |= j < count ? code << (j * codeBits) : 0;
      }
      shared.tile.quads[q] = quad;
    }
  }
};

// Writes the value of each code.
template <typename Values>
struct DecodeKernel {
  static constexpr int kPhases = 2;
  using Shared = TileWords;
  struct Thread {};

  const std::uint32_t* codes;  // codeBytes()
  Values values;
  std::uint32_t bits;
  Output out;

  std::uint32_t blocks() const { return tilesOf(out.elements); }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared& shared, Thread&) const {
    if constexpr (kPhase == 0) readWords(shared, at, bits, codes);
    if constexpr (kPhase == 1) write(at, shared);
  }

  CLEAVE_DEVICE void write(Place at, const Shared& shared) const {
    CLEAVE_UNROLL
    for (std::uint32_t k = 0; k < kQuads; ++k) {
      const std::uint32_t q = quadIndex(at.thread, k);
      const std::uint64_t quad = quadOf(shared, q, bits);
      FourFloats four;
      CLEAVE_UNROLL
      for (std::uint32_t j = 0; j < 4; ++j) four.x[j] = values.of(codeOfQuad(quad, j, bits));
      writeFour(out, quadStart(at.block, q), four);
    }
  }
};

struct GridValues {
  QuantGrid grid;
  CLEAVE_DEVICE float of(std::uint32_t code) const {
    return grid.min + grid.step * static_cast<float>(code);
  }
};
struct TableValues {
  const float* table;  // 2^bits
  CLEAVE_DEVICE float of(std::uint32_t code) const { return table[code]; }
};
using DequantizeKernel = DecodeKernel<GridValues>;
using LookUpKernel = DecodeKernel<TableValues>;

// Converts every element to another type.
struct CastKernel {
  static constexpr int kPhases = 1;
  struct Shared {};
  struct Thread {};

  Input in;
  Output out;  // must have as many elements

  std::uint32_t blocks() const { return tilesOf(in.elements); }

  template <int kPhase>
  CLEAVE_DEVICE void run(Place at, Shared&, Thread&) const {
    const std::uint64_t start = tileStart(at.block);
    const ThreadQuads mine = readTile(in, start, at.thread, 0);
    CLEAVE_UNROLL
    for (std::uint32_t k = 0; k < kQuads; ++k)
      writeFour(out, quadStart(at.block, quadIndex(at.thread, k)), mine.quads[k]);
  }
};

}  // namespace cleave::device
