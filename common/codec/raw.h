// The tensor's own bytes as a payload. Codecs that cannot represent all values begin their payloads
// with a format byte; kRawFormat means raw. Raw payloads are used for tensors that encoding would
// not make shorter, and for tensors with NaN or infinities if the run is configured to send those.
// Decoders accept raw payloads for any tensor.
#pragma once

#include <cstring>
#include <span>

#include "common/codec/codec.h"

namespace cleave {

inline constexpr std::byte kRawFormat{0};

inline std::size_t rawPayloadBytes(const TensorSpec& spec) {
  return spec.elements() == 0 ? 0 : 1 + spec.bytes();
}

// `out` must have room for rawPayloadBytes.
inline Encoded encodeRaw(const TensorView& view, std::span<std::byte> out) {
  const std::size_t bytes = rawPayloadBytes(view.spec);
  if (bytes == 0) return {};
  out[0] = kRawFormat;
  std::memcpy(out.data() + 1, view.data, bytes - 1);
  return {bytes, nullptr};
}

// Returns whether the payload is raw and fits this tensor; if so, writes the tensor.
inline bool decodeRaw(std::span<const std::byte> bytes, MutableTensorView out) {
  if (bytes.size() != rawPayloadBytes(out.spec)) return false;
  if (bytes.empty()) return true;
  if (bytes[0] != kRawFormat) return false;
  std::memcpy(out.data, bytes.data() + 1, out.spec.bytes());
  return true;
}

}  // namespace cleave
