#include "compression/lossless_codec.h"

#include <cstring>

#include "common/codec/raw.h"
#include "compression/codecs.h"

namespace cleave {
namespace {

constexpr std::byte kStored{1};
constexpr std::byte kCompressed{2};

}  // namespace

std::size_t LosslessCodec::maxEncodedBytes(const TensorSpec& spec) const {
  const std::size_t maxBytes = inner_->maxEncodedBytes(spec);
  return maxBytes == 0 ? 0 : 1 + maxBytes;
}

CodecMemory LosslessCodec::memory(const TensorSpec& spec) const {
  CodecMemory memory = inner_->memory(spec);
  memory.working += 2 * inner_->maxEncodedBytes(spec) + compressorBytes();
  return memory;
}

Encoded LosslessCodec::encode(const CodecContext& context, const CodecState& state, CutContext& cut,
                              const TensorView& view, std::span<std::byte> out) const {
  std::vector<std::byte> payload(inner_->maxEncodedBytes(view.spec));
  Encoded encoded = inner_->encode(context, state, cut, view, payload);
  if (encoded.bytes == 0) return encoded;
  payload.resize(encoded.bytes);
  const std::vector<std::byte> compressed = compress(context, payload);
  const std::vector<std::byte>& sent = compressed.empty() ? payload : compressed;
  out[0] = compressed.empty() ? kStored : kCompressed;
  std::memcpy(out.data() + 1, sent.data(), sent.size());
  encoded.bytes = 1 + sent.size();
  return encoded;
}

CodecState LosslessCodec::decode(const CodecContext& context, const CodecState& state,
                                 CutContext& cut, std::span<const std::byte> bytes,
                                 MutableTensorView out) const {
  if (bytes.empty() || bytes[0] == kStored)
    return decodeInner(context, state, cut, bytes.subspan(bytes.empty() ? 0 : 1), out);
  if (bytes[0] == kCompressed) {
    const std::vector<std::byte> payload =
        decompress(context, bytes.subspan(1), inner_->maxEncodedBytes(out.spec));
    if (bytes.size() > maxEncodedBytes(out.spec))
      throwBadPayload(*this, context.key, "it is longer than the payload of " + inner_->spec());
    return decodeInner(context, state, cut, payload, out);
  }
  if (!decodeRaw(bytes, out)) throwBadFormat(*this, context.key, bytes, out.spec);
  return nullptr;
}

std::vector<std::byte> LosslessCodec::saveState(const CodecState& state) const {
  return inner_->saveState(state);
}

CodecState LosslessCodec::restoreState(std::span<const std::byte> bytes) const {
  return inner_->restoreState(bytes);
}

CodecState LosslessCodec::decodeInner(const CodecContext& context, const CodecState& state,
                                      CutContext& cut, std::span<const std::byte> payload,
                                      const MutableTensorView& out) const {
  return decodeInside(*this, *inner_, context, state, cut, payload, out);
}

}  // namespace cleave
