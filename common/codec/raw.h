// The tensor's own bytes as a payload. Every codec that does not carry all values begins its
// payloads with a format byte, and in all of them kRawFormat means this one: for a tensor that
// encoding would not make shorter, and for one that a codec cannot carry and that the run wants to
// send all the same (NaN and infinities). Decoders take it for any tensor.
#pragma once

#include <cstring>
#include <span>

#include "common/codec/codec.h"

namespace cleave {

inline constexpr std::byte kRawFormat{0};

inline std::size_t rawPayloadBytes(const TensorSpec& spec) {
  return spec.elements() == 0 ? 0 : 1 + spec.bytes();
}

// `out` has room for rawPayloadBytes.
inline Encoded encodeRaw(const TensorView& view, std::span<std::byte> out) {
  const std::size_t bytes = rawPayloadBytes(view.spec);
  if (bytes == 0) return {};
  out[0] = kRawFormat;
  std::memcpy(out.data() + 1, view.data, bytes - 1);
  return {bytes, nullptr};
}

// Whether a payload is of this kind and for this tensor, which is then written.
inline bool decodeRaw(std::span<const std::byte> bytes, MutableTensorView out) {
  if (bytes.size() != rawPayloadBytes(out.spec)) return false;
  if (bytes.empty()) return true;
  if (bytes[0] != kRawFormat) return false;
  std::memcpy(out.data, bytes.data() + 1, out.spec.bytes());
  return true;
}

}  // namespace cleave
