// What a codec makes of one tensor of a file: bytes, seconds and errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "common/codec/codec.h"
#include "common/core/buffer.h"
#include "common/model/safetensors.h"

namespace cleave {

// Of one tensor or, added up, of several.
struct CodecFigures {
  std::size_t tensors = 0;
  std::size_t rawBytes = 0;
  std::size_t wireBytes = 0;  // payload
  double encodeSeconds = 0;
  double decodeSeconds = 0;
  double signal = 0;  // sum of the squares of what came in
  double noise = 0;   // and of the differences to what came out
  double largestError = 0;
  bool exact = true;  // to the bit

  void add(const CodecFigures& other);
  // wireBytes by rawBytes; nothing where there are no bytes.
  std::optional<double> ratio() const;
  std::optional<double> rate(double seconds) const;  // GB/s, of raw bytes; nothing likewise
  double snr() const;                                // dB; infinite where there is no noise
};

// What an entry of a safetensors file has; nothing where that is no float that codecs take.
std::optional<DType> floatOf(const SafetensorsEntry& entry);

// Sends a tensor of floats through the codec, as an activation of micro-batch `index` in training's
// first step, and writes what comes out to `out`, which may be nullptr. `file` is for the error:
// throws RunError "non-finite" where the codec cannot carry a value.
CodecFigures tryCodec(const Codec& codec, BufferPool& pool, const SafetensorsEntry& entry,
                      std::uint32_t index, const std::string& file, std::byte* out);

}  // namespace cleave
