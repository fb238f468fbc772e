// `fp16` and `bf16`: every element as a 16-bit float, in memory order. A payload has 2 bytes per
// element and no header.
#include <cstring>

#include "compression/codecs.h"
#include "compression/parts/strips.h"

namespace cleave {
namespace {

class Cast : public Codec {
 public:
  Cast(std::string name, DType wireType) : name_(std::move(name)), wireType_(wireType) {}

  std::string spec() const override { return name_; }
  std::size_t maxEncodedBytes(const TensorSpec& spec) const override {
    return spec.elements() * dtypeBytes(wireType_);
  }

  Encoded encode(const CodecContext& context, const CodecState&, CutContext&,
                 const TensorView& view, std::span<std::byte> out) const override {
    const std::size_t bytes = maxEncodedBytes(view.spec);
    if (view.spec.dtype == wireType_) {
      if (bytes > 0) std::memcpy(out.data(), view.data, bytes);
    } else {
      forEachStrip<kLongStripElements>(
          context, FloatReader(view),
          [&](std::size_t start, std::size_t count, const float* values) {
            fromFloat(values, count, wireType_, &out[start * dtypeBytes(wireType_)]);
          });
    }
    return {bytes, nullptr};
  }

  CodecState decode(const CodecContext& context, const CodecState&, CutContext&,
                    std::span<const std::byte> bytes, MutableTensorView out) const override {
    checkPayloadSize(*this, context.key, bytes.size(), maxEncodedBytes(out.spec));
    if (out.spec.dtype == wireType_) {
      if (!bytes.empty()) std::memcpy(out.data, bytes.data(), bytes.size());
    } else {
      makeEachStrip(context, out, [&](std::size_t start, std::size_t count, float* values) {
        toFloat(&bytes[start * dtypeBytes(wireType_)], wireType_, count, values);
      });
    }
    return nullptr;
  }

 private:
  const std::string name_;
  const DType wireType_;
};

}  // namespace

std::unique_ptr<Codec> makeFp16(const CodecSpec& spec) {
  CodecParameters(spec).finish();
  return std::make_unique<Cast>("fp16", DType::f16);
}

std::unique_ptr<Codec> makeBf16(const CodecSpec& spec) {
  CodecParameters(spec).finish();
  return std::make_unique<Cast>("bf16", DType::bf16);
}

}  // namespace cleave
