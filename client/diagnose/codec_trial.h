// Measures a codec on one tensor of a file: bytes, seconds and errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "common/codec/codec.h"
#include "common/codec/safetensors.h"
#include "common/resources/buffer.h"

namespace cleave {

// The figures of one tensor, or their sum over several tensors.
struct CodecFigures {
  std::size_t tensors = 0;
  std::size_t rawBytes = 0;
  std::size_t wireBytes = 0;  // bytes of the payload
  double encodeSeconds = 0;
  double decodeSeconds = 0;
  double signal = 0;  // sum of the squares of the input values
  double noise = 0;   // sum of the squares of the differences between output and input
  double largestError = 0;
  bool exact = true;  // bit-identical

  void add(const CodecFigures& other);
  // wireBytes divided by rawBytes; empty if there are no bytes.
  std::optional<double> ratio() const;
  // GB/s of raw bytes; empty if there are no bytes.
  std::optional<double> rate(double seconds) const;
  double snr() const;  // signal-to-noise ratio in dB; infinite if there is no noise
};

// The dtype of the entry; empty if it is not a floating-point type that codecs accept.
std::optional<DType> floatOf(const SafetensorsEntry& entry);

// Encodes and decodes a floating-point tensor, as if it were the activation of micro-batch `index`
// in the first training step. Writes the decoded values to `out`, which may be null. Error messages
// name `file`. Throws RunError "non-finite" if the codec cannot encode a value.
CodecFigures tryCodec(const Codec& codec, BufferPool& pool, const SafetensorsEntry& entry,
                      std::uint32_t index, const std::string& file, std::byte* out);

}  // namespace cleave
