#include "compression/packed_codec.h"

#include <cassert>

#include "compression/codecs.h"

namespace cleave {
namespace {

constexpr std::byte kPacked{1};

}  // namespace

bool PackedCodec::isPacked(const TensorSpec& spec) const {
  return packedPayloadBytes(spec) < rawPayloadBytes(spec);
}

std::size_t PackedCodec::maxEncodedBytes(const TensorSpec& spec) const {
  return isPacked(spec) ? packedPayloadBytes(spec) : rawPayloadBytes(spec);
}

Encoded PackedCodec::encode(const CodecContext& context, const CodecState&, CutContext&,
                            const TensorView& view, std::span<std::byte> out) const {
  if (!isPacked(view.spec)) return encodeFiniteRaw(context, view, out);
  assert(out.size() >= packedPayloadBytes(view.spec));
  out[0] = kPacked;
  encodePacked(context, view, out.data() + kFormatBytes);
  return {packedPayloadBytes(view.spec), nullptr};
}

CodecState PackedCodec::decode(const CodecContext& context, const CodecState&, CutContext&,
                               std::span<const std::byte> bytes, MutableTensorView out) const {
  if (decodeRaw(bytes, out)) return nullptr;
  checkPayloadSize(*this, context.key, bytes.size(), maxEncodedBytes(out.spec));
  if (bytes[0] != kPacked || !isPacked(out.spec)) {
    throwBadFormat(*this, context.key, bytes, out.spec);
  }
  decodePacked(context, bytes.data() + kFormatBytes, out);
  return nullptr;
}

}  // namespace cleave
