// How kernels divide a tensor: a block of kThreads threads processes a tile of kTileElements
// elements, a warp a contiguous kWarpElements of the tile, and a thread every 32nd quad (four
// adjacent elements) of those. So neighbouring threads access neighbouring memory, 16 bytes each
// for fp32.
//
// A kernel is a struct with its arguments, a number of blocks, and phases. run<p>() is phase p of
// one thread of one block; all threads of a block finish a phase before any starts the next.
// Threads of a block communicate through Shared, which is not initialised; a thread keeps its own
// data between phases in Thread. Pointers are to GPU memory. cuda/kernels.cu runs
// kernels on a GPU, tests/support/codecs/emulated_gpu.h on the host, with the same code.
#pragma once

#include "compression/device/arithmetic.h"

namespace cleave::device {

inline constexpr std::uint32_t kThreads = 128;
inline constexpr std::uint32_t kWarp = 32;
inline constexpr std::uint32_t kQuads = 8;  // per thread
inline constexpr std::uint32_t kWarpElements = kWarp * kQuads * 4;
inline constexpr std::uint32_t kTileElements = kThreads * kQuads * 4;
inline constexpr std::uint32_t kTileQuads = kTileElements / 4;

// The running thread.
struct Place {
  std::uint32_t block = 0;
  std::uint32_t blocks = 1;
  std::uint32_t thread = 0;
};

CLEAVE_DEVICE constexpr std::uint32_t tilesOf(std::uint64_t elements) {
  return static_cast<std::uint32_t>((elements + kTileElements - 1) / kTileElements);
}

// Index within a tile of the thread's quad k.
CLEAVE_DEVICE inline std::uint32_t quadIndex(std::uint32_t thread, std::uint32_t k) {
  return thread / kWarp * (kWarp * kQuads) + k * kWarp + thread % kWarp;
}

// The first element of a tile, or of its quad q.
CLEAVE_DEVICE inline std::uint64_t tileStart(std::uint32_t tile) {
  return std::uint64_t{tile} * kTileElements;
}
CLEAVE_DEVICE inline std::uint64_t quadStart(std::uint32_t tile, std::uint32_t q) {
  return (std::uint64_t{tile} * kTileQuads + q) * 4;
}

// ---- Elements ----

struct alignas(16) FourFloats {
  float x[4];
};
struct alignas(8) FourHalves {
  std::uint16_t x[4];
};

// A dense tensor, aligned to 16 bytes.
struct Input {
  const std::byte* data = nullptr;
  std::uint64_t elements = 0;
  DType dtype = DType::f32;
};
struct Output {
  std::byte* data = nullptr;
  std::uint64_t elements = 0;
  DType dtype = DType::f32;
};

CLEAVE_DEVICE inline float valueOf(const Input& in, std::uint64_t j) {
  if (in.dtype == DType::f32) return reinterpret_cast<const float*>(in.data)[j];
  return widen(reinterpret_cast<const std::uint16_t*>(in.data)[j], in.dtype);
}

// The number of elements, up to four, that exist from `start` on.
CLEAVE_DEVICE inline std::uint32_t countOf(std::uint64_t elements, std::uint64_t start) {
  if (start >= elements) return 0;
  return elements - start < 4 ? static_cast<std::uint32_t>(elements - start) : 4;
}

CLEAVE_DEVICE inline FourFloats widenFour(const FourHalves& halves, DType dtype) {
  FourFloats four;
  CLEAVE_UNROLL
  for (std::uint32_t j = 0; j < 4; ++j) four.x[j] = widen(halves.x[j], dtype);
  return four;
}

// Four elements from `start` on, which must be a multiple of 4. Elements beyond the end become
// `rest`.
CLEAVE_DEVICE inline FourFloats readFour(const Input& in, std::uint64_t start, float rest) {
  FourFloats four;
  const std::uint32_t count = countOf(in.elements, start);
  if (count < 4) {
    CLEAVE_UNROLL
    for (std::uint32_t j = 0; j < 4; ++j) four.x[j] = j < count ? valueOf(in, start + j) : rest;
    return four;
  }
  if (in.dtype == DType::f32) return reinterpret_cast<const FourFloats*>(in.data)[start / 4];
  return widenFour(reinterpret_cast<const FourHalves*>(in.data)[start / 4], in.dtype);
}

// A thread's part of a tile. Issues all loads before waiting for the first one.
struct ThreadQuads {
  FourFloats quads[kQuads];
};
CLEAVE_DEVICE inline ThreadQuads readTile(const Input& in, std::uint64_t start,
                                          std::uint32_t thread, float rest) {
  ThreadQuads mine;
  const std::uint64_t first = start / 4 + quadIndex(thread, 0);
  if (in.elements - start < kTileElements) {
    CLEAVE_UNROLL
    for (std::uint32_t k = 0; k < kQuads; ++k)
      mine.quads[k] = readFour(in, 4 * (first + std::uint64_t{k} * kWarp), rest);
  } else if (in.dtype == DType::f32) {
    CLEAVE_UNROLL
    for (std::uint32_t k = 0; k < kQuads; ++k)
      mine.quads[k] =
          reinterpret_cast<const FourFloats*>(in.data)[first + std::uint64_t{k} * kWarp];
  } else {
    FourHalves halves[kQuads];
    CLEAVE_UNROLL
    for (std::uint32_t k = 0; k < kQuads; ++k)
      halves[k] = reinterpret_cast<const FourHalves*>(in.data)[first + std::uint64_t{k} * kWarp];
    CLEAVE_UNROLL
    for (std::uint32_t k = 0; k < kQuads; ++k) mine.quads[k] = widenFour(halves[k], in.dtype);
  }
  return mine;
}

CLEAVE_DEVICE inline void writeFour(const Output& out, std::uint64_t start,
                                    const FourFloats& four) {
  const std::uint32_t count = countOf(out.elements, start);
  if (out.dtype == DType::f32) {
    auto* const to = reinterpret_cast<float*>(out.data) + start;
    if (count == 4) {
      *reinterpret_cast<FourFloats*>(to) = four;
      return;
    }
    CLEAVE_UNROLL
    for (std::uint32_t j = 0; j < 4; ++j) {
      if (j < count) to[j] = four.x[j];
    }
    return;
  }
  auto* const to = reinterpret_cast<std::uint16_t*>(out.data) + start;
  FourHalves halves;
  CLEAVE_UNROLL
  for (std::uint32_t j = 0; j < 4; ++j) halves.x[j] = narrow(four.x[j], out.dtype);
  if (count == 4) {
    *reinterpret_cast<FourHalves*>(to) = halves;
    return;
  }
  CLEAVE_UNROLL
  for (std::uint32_t j = 0; j < 4; ++j) {
    if (j < count) to[j] = halves.x[j];
  }
}

// ---- Codes of 1…16 bits; a quad's four codes in a 64-bit word, in stream order ----

CLEAVE_DEVICE constexpr std::uint32_t tileWords(std::uint32_t bits) {
  return kTileElements / 32 * bits;
}
// Bytes for the codes of a tensor, rounded up to whole tiles, because kernels access whole tiles.
CLEAVE_DEVICE constexpr std::uint64_t codeBytes(std::uint64_t elements, std::uint32_t bits) {
  return std::uint64_t{tilesOf(elements)} * tileWords(bits) * 4;
}

struct TileQuads {
  std::uint64_t quads[kTileQuads];
};

// Thread t writes words t, t + kThreads, … of the tile, using all threads' quads.
CLEAVE_DEVICE inline void writeWords(const TileQuads& tile, Place at, std::uint32_t bits,
                                     std::uint32_t* codes) {
  const std::uint32_t words = tileWords(bits);
  const std::uint32_t quadBits = 4 * bits;
  codes += std::uint64_t{at.block} * words;
  for (std::uint32_t w = at.thread; w < words; w += kThreads) {
    if (bits == 8) {
      codes[w] = static_cast<std::uint32_t>(tile.quads[w]);
      continue;
    }
    const std::uint32_t begin = 32 * w;
    std::uint32_t word = 0;
    std::uint32_t q = begin / quadBits;
    for (std::uint32_t bit = q * quadBits; bit < begin + 32; bit += quadBits, ++q) {
      word |= static_cast<std::uint32_t>(bit < begin ? tile.quads[q] >> (begin - bit)
                                                     : tile.quads[q] << (bit - begin));
    }
    codes[w] = word;
  }
}

struct TileWords {  // has two additional words for reading beyond the end
  std::uint32_t words[kTileElements / 32 * 16 + 2];
};

CLEAVE_DEVICE inline void readWords(TileWords& tile, Place at, std::uint32_t bits,
                                    const std::uint32_t* codes) {
  const std::uint32_t words = tileWords(bits);
  codes += std::uint64_t{at.block} * words;
  for (std::uint32_t w = at.thread; w < words; w += kThreads) tile.words[w] = codes[w];
  if (at.thread < 2) tile.words[words + at.thread] = 0;
}

// Returns the codes of quad q of the tile.
CLEAVE_DEVICE inline std::uint64_t quadOf(const TileWords& tile, std::uint32_t q,
                                          std::uint32_t bits) {
  if (bits == 8) return tile.words[q];
  const std::uint32_t bit = q * 4 * bits;
  const std::uint32_t w = bit / 32;
  const std::uint32_t shift = bit % 32;
  const std::uint64_t low = tile.words[w] | std::uint64_t{tile.words[w + 1]} << 32;
  if (shift == 0) return low;
  return low >> shift | std::uint64_t{tile.words[w + 2]} << (64 - shift);
}

CLEAVE_DEVICE inline std::uint32_t codeOfQuad(std::uint64_t quad, std::uint32_t k,
                                              std::uint32_t bits) {
  return static_cast<std::uint32_t>(quad >> (k * bits)) & ((1u << bits) - 1);
}

}  // namespace cleave::device
