// `zstd:level=L(CODEC)`: another codec's payload, losslessly compressed with Zstandard (RFC 8878)
// if that saves at least an eighth.
//
//   payload    as in lossless_codec.h
//   compressed = one Zstandard frame, with its content size; no checksum, no dictionary
//
// The same version of libzstd produces the same bytes. Decoding allocates memory only for the inner
// payload, whose size is given in the frame and limited by the inner codec's bound. A frame cannot
// make the decoder allocate more: decoding a whole frame needs no window besides its output.
#include <zstd.h>

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "compression/codecs.h"
#include "compression/lossless_codec.h"

namespace cleave {
namespace {

// One Zstandard block, which takes 50 ms at level 19.
constexpr std::size_t kBytesPerCall = std::size_t{128} << 10;

class Zstd : public LosslessCodec {
 public:
  Zstd(int level, std::unique_ptr<Codec> inner) : LosslessCodec(std::move(inner)), level_(level) {}

  std::string spec() const override {
    return "zstd:level=" + std::to_string(level_) + "(" + inner().spec() + ")";
  }

 private:
  // Bounded by ZSTD_estimateCStreamSize(): 16.8 MiB at level 9, 89.5 MiB at level 19; decoding
  // takes less.
  std::size_t compressorBytes() const override {
    return std::size_t{level_ <= 9 ? 17u : 90u} << 20;
  }

  std::vector<std::byte> compress(const CodecContext& context,
                                  std::span<const std::byte> payload) const override {
    // zstd may write beyond its output, hence a buffer of its own.
    std::vector<std::byte> frame(payload.size() - (payload.size() + 7) / 8);
    frame.resize(compressInto(frame, context, payload).value_or(0));
    return frame;
  }

  // Compresses in pieces, with a checkpoint after each, because at level 19 a tensor can take tens
  // of seconds. Returns the size of the frame in bytes; nullopt if it does not fit.
  std::optional<std::size_t> compressInto(std::span<std::byte> frame, const CodecContext& context,
                                          std::span<const std::byte> payload) const {
    const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> stream(ZSTD_createCCtx(),
                                                                      &ZSTD_freeCCtx);
    if (!stream) throw std::bad_alloc();
    check(ZSTD_CCtx_setParameter(stream.get(), ZSTD_c_compressionLevel, level_));
    check(ZSTD_CCtx_setPledgedSrcSize(stream.get(), payload.size()));
    ZSTD_outBuffer out{frame.data(), frame.size(), 0};
    ZSTD_inBuffer in{payload.data(), 0, 0};
    do {
      in.size = std::min(in.size + kBytesPerCall, payload.size());
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

  std::vector<std::byte> decompress(const CodecContext& context, std::span<const std::byte> frame,
                                    std::size_t maxBytes) const override {
    const auto refuse = [&](const std::string& fault) {
      throwBadPayload(*this, context.key, fault);
    };
    const unsigned long long size = ZSTD_getFrameContentSize(frame.data(), frame.size());
    if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN)
      refuse("it is not a Zstandard frame that states its content size");
    if (size > maxBytes) {
      refuse("its frame has " + std::to_string(size) + " bytes, but " + inner().spec() +
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
};

}  // namespace

std::unique_ptr<Codec> makeZstd(const CodecSpec& spec) {
  CodecParameters parameters(spec);
  const int level = parameters.integer("level", 1, 19);
  parameters.mayWrap();
  parameters.finish();
  return std::make_unique<Zstd>(
      level, makeInner(spec, "zstd:level=" + std::to_string(level) + "(block:bits=4)"));
}

}  // namespace cleave
