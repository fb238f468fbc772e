// Measures a codec on one tensor of a file: bytes, seconds and errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "common/codec/codec.h"
#include "common/core/buffer.h"
#include "common/model/safetensors.h"

namespace cleave {

// The figures of one tensor, or their sum over several tensors.
struct CodecFigures {
  std::size_t tensors = 0;
  std::size_t rawBytes = 0;
  std::size_t wireBytes = 0;  // payload
  double encodeSeconds = 0;
  double decodeSeconds = 0;
  double signal = 0;  // sum of the squares of the input values
  double noise = 0;   // sum of the squares of the differences between output and input
  double largestError = 0;
  bool exact = true;  // bit-identical

  void add(const CodecFigures& other);
  // wireBytes divided by rawBytes; empty if there are no bytes.
  std::optional<double> ratio() const;
  std::optional<double> rate(double seconds) const;  // GB/s of raw bytes; empty if there are none
  double snr() const;                                // dB; infinite if there is no noise
};

// The dtype of an entry in a safetensors file; empty if it is not a float type that codecs accept.
std::optional<DType> floatOf(const SafetensorsEntry& entry);

// Passes a tensor of floats through the codec, as the activation of micro-batch `index` in the
// first training step, and writes the decoded values to `out`, which may be null. Errors name
// `file`. Throws RunError "non-finite" if the codec cannot encode a value.
CodecFigures tryCodec(const Codec& codec, BufferPool& pool, const SafetensorsEntry& entry,
                      std::uint32_t index, const std::string& file, std::byte* out);

}  // namespace cleave
