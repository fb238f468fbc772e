// `zstd:level=L(CODEC)`: another codec's payload, losslessly compressed with Zstandard (RFC 8878)
// if that saves at least an eighth.
//
//   payload = nothing                        for a tensor without elements
//           | 0x00, the tensor's own bytes   if the tensor is sent raw
//           | 0x01, the inner codec's payload
//           | 0x02, one Zstandard frame      with its content size; its content is the inner
//                                            codec's payload; no checksum, no dictionary
//
// The same version of libzstd produces the same bytes. Decoding allocates memory only for the inner
// payload, whose size is given in the frame and limited by the inner codec's bound. A frame cannot
// make it allocate more: decoding a whole frame needs no window besides its output.
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "common/codec/raw.h"
#include "compression/codecs.h"
#include "compression/registry.h"

namespace cleave {
namespace {

constexpr std::byte kStored{1};
constexpr std::byte kCompressed{2};
// Payload bytes per call: one Zstandard block, which takes 50 ms at level 19.
constexpr std::size_t kPieceBytes = std::size_t{128} << 10;

class Zstd : public Codec {
 public:
  Zstd(int level, std::unique_ptr<Codec> inner) : level_(level), inner_(std::move(inner)) {}

  std::string spec() const override {
    return "zstd:level=" + std::to_string(level_) + "(" + inner_->spec() + ")";
  }

  std::size_t maxEncodedBytes(const TensorSpec& spec) const override {
    const std::size_t maxBytes = inner_->maxEncodedBytes(spec);
    return maxBytes == 0 ? 0 : 1 + maxBytes;
  }

  // zstd's own memory is bounded by ZSTD_estimateCStreamSize(): 16.8 MiB at level 9, 89.5 MiB at
  // level 19; decoding takes less.
  CodecMemory memory(const TensorSpec& spec) const override {
    CodecMemory memory = inner_->memory(spec);
    const std::size_t context = std::size_t{level_ <= 9 ? 17u : 90u} << 20;
    memory.working += 2 * inner_->maxEncodedBytes(spec) + context;
    return memory;
  }

  Encoded encode(const CodecContext& context, const CodecState& state, CutContext& cut,
                 const TensorView& view, std::span<std::byte> out) const override {
    std::vector<std::byte> payload(inner_->maxEncodedBytes(view.spec));
    Encoded encoded = inner_->encode(context, state, cut, view, payload);
    if (encoded.bytes == 0) return encoded;
    payload.resize(encoded.bytes);
    // zstd may write beyond its output, hence the copy.
    std::vector<std::byte> frame(encoded.bytes - (encoded.bytes + 7) / 8);
    const std::optional<std::size_t> bytes = compress(context, payload, frame);
    const bool gains = bytes.has_value();
    const std::size_t kept = bytes.value_or(encoded.bytes);
    out[0] = gains ? kCompressed : kStored;
    std::memcpy(out.data() + 1, gains ? frame.data() : payload.data(), kept);
    encoded.bytes = 1 + kept;
    return encoded;
  }

  CodecState decode(const CodecContext& context, const CodecState& state, CutContext& cut,
                    std::span<const std::byte> bytes, MutableTensorView out) const override {
    if (bytes.empty() || bytes[0] == kStored)
      return decodeInner(context, state, cut, bytes.subspan(bytes.empty() ? 0 : 1), out);
    if (bytes[0] == kCompressed) {
      const std::vector<std::byte> payload = decompress(context.key, bytes.subspan(1), out.spec);
      return decodeInner(context, state, cut, payload, out);
    }
    if (!decodeRaw(bytes, out)) throwBadFormat(*this, context.key, bytes, out.spec);
    return nullptr;
  }

 private:
  CodecState decodeInner(const CodecContext& context, const CodecState& state, CutContext& cut,
                         std::span<const std::byte> payload, const MutableTensorView& out) const {
    try {
      return inner_->decode(context, state, cut, payload, out);
    } catch (const ProtocolError& error) {
      throwBadPayload(*this, context.key, error.what());
    }
  }

  // Compresses in pieces, with a checkpoint after each, because at level 19 a tensor can take tens
  // of seconds. Returns the size of the frame in bytes; nullopt if it does not fit.
  std::optional<std::size_t> compress(const CodecContext& context,
                                      std::span<const std::byte> payload,
                                      std::span<std::byte> frame) const {
    const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> stream(ZSTD_createCCtx(),
                                                                      &ZSTD_freeCCtx);
    if (!stream) throw std::bad_alloc();
    check(ZSTD_CCtx_setParameter(stream.get(), ZSTD_c_compressionLevel, level_));
    check(ZSTD_CCtx_setPledgedSrcSize(stream.get(), payload.size()));
    ZSTD_outBuffer out{frame.data(), frame.size(), 0};
    ZSTD_inBuffer in{payload.data(), 0, 0};
    do {
      in.size = std::min(in.size + kPieceBytes, payload.size());
      const bool isLast = in.size == payload.size();
      std::size_t left = 0;
      do {
        left = check(
            ZSTD_compressStream2(stream.get(), &out, &in, isLast ? ZSTD_e_end : ZSTD_e_continue));
        if (out.pos == out.size && (left > 0 || in.pos < payload.size())) return std::nullopt;
      } while (in.pos < in.size || (isLast && left > 0));
      context.checkpoint();
    } while (in.pos < payload.size());
    return out.pos;
  }

  static std::size_t check(std::size_t result) {
    if (!ZSTD_isError(result)) return result;
    throw RunError("internal-error", std::string("Zstandard: ") + ZSTD_getErrorName(result));
  }

  std::vector<std::byte> decompress(const Key& key, std::span<const std::byte> frame,
                                    const TensorSpec& spec) const {
    const auto refuse = [&](const std::string& fault) { throwBadPayload(*this, key, fault); };
    const unsigned long long size = ZSTD_getFrameContentSize(frame.data(), frame.size());
    if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN)
      refuse("it is not a Zstandard frame that states its content size");
    const std::size_t maxBytes = inner_->maxEncodedBytes(spec);
    if (size > maxBytes) {
      refuse("its frame has " + std::to_string(size) + " bytes, but " + inner_->spec() +
             " writes at most " + std::to_string(maxBytes));
    }
    if (ZSTD_findFrameCompressedSize(frame.data(), frame.size()) != frame.size())
      refuse("it is not exactly one complete Zstandard frame");
    std::vector<std::byte> payload(size);
    const std::size_t bytes =
        ZSTD_decompress(payload.data(), payload.size(), frame.data(), frame.size());
    if (ZSTD_isError(bytes)) refuse(std::string("Zstandard: ") + ZSTD_getErrorName(bytes));
    if (bytes != payload.size()) refuse("its frame has fewer bytes than it states");
    return payload;
  }

  const int level_;
  const std::unique_ptr<Codec> inner_;
};

}  // namespace

std::unique_ptr<Codec> makeZstd(const CodecSpec& spec) {
  CodecParameters parameters(spec);
  const int level = parameters.integer("level", 1, 19);
  const auto inner = parameters.innerSpec();
  parameters.finish();
  if (!inner) {
    throw UsageError(
        "bad-codec-spec", "codec zstd needs a codec to wrap",
        "write it in parentheses, as in zstd:level=" + std::to_string(level) + "(block:bits=4)");
  }
  return std::make_unique<Zstd>(level, makeCodec(*inner));
}

}  // namespace cleave
