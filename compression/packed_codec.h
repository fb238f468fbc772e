// Base of codecs whose payload's form and length are determined by the tensor's spec alone:
//
//   payload = nothing                        for a tensor without elements
//           | 0x00, the tensor's own bytes   if packing would not make it shorter
//           | 0x01, the packed values
#pragma once

#include "compression/parts/payload.h"

namespace cleave {

class PackedCodec : public Codec {
 public:
  // The exact size of a payload.
  std::size_t maxEncodedBytes(const TensorSpec& spec) const final;
  Encoded encode(const CodecContext& context, const CodecState& state, CutContext& cut,
                 const TensorView& view, std::span<std::byte> out) const final;
  CodecState decode(const CodecContext& context, const CodecState& state, CutContext& cut,
                    std::span<const std::byte> bytes, MutableTensorView out) const final;

 protected:
  // Size of the payload of a packed tensor, including the format byte.
  virtual std::size_t packedPayloadBytes(const TensorSpec& spec) const = 0;
  // `out` is the payload after the format byte; all of it must be written. The tensor has at least
  // one element. Throws NonFiniteError.
  virtual void encodePacked(const CodecContext& context, const TensorView& view,
                            std::byte* out) const = 0;
  // `bytes` is the payload after the format byte, of the right length. Throws ProtocolError.
  virtual void decodePacked(const CodecContext& context, const std::byte* bytes,
                            MutableTensorView out) const = 0;

 private:
  bool isPacked(const TensorSpec& spec) const;
};

}  // namespace cleave
