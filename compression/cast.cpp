// `fp16` and `bf16`: every element as a 16-bit float, in memory order. A payload is 2 bytes an
// element, no header.
#include <algorithm>
#include <array>
#include <cstring>

#include "compression/codecs.h"
#include "compression/convert.h"

namespace cleave {
namespace {

// From one 16-bit format to the other by way of fp32, in pieces that stay in the first-level cache.
constexpr std::size_t kBlock = 1024;

void convert(const std::byte* in, DType from, std::size_t elements, DType to, std::byte* out) {
  if (from == to) {
    if (elements > 0) std::memcpy(out, in, elements * dtypeBytes(to));
    return;
  }
  std::array<float, kBlock> block;
  for (std::size_t start = 0; start < elements; start += kBlock) {
    const std::size_t count = std::min(kBlock, elements - start);
    toFloat(in + start * dtypeBytes(from), from, count, block.data());
    fromFloat(block.data(), count, to, out + start * dtypeBytes(to));
  }
}

class Cast : public Codec {
 public:
  Cast(std::string name, DType wireType) : name_(std::move(name)), wireType_(wireType) {}

  std::string spec() const override { return name_; }
  std::size_t maxEncodedBytes(const TensorSpec& spec) const override {
    return spec.elements() * dtypeBytes(wireType_);
  }

  Encoded encode(const CodecContext&, const CodecState&, CutContext&, const TensorView& view,
                 std::span<std::byte> out) const override {
    convert(view.data, view.spec.dtype, view.spec.elements(), wireType_, out.data());
    return {maxEncodedBytes(view.spec), nullptr};
  }

  CodecState decode(const CodecContext& context, const CodecState&, CutContext&,
                    std::span<const std::byte> bytes, MutableTensorView out) const override {
    checkPayloadSize(*this, context.key, bytes.size(), maxEncodedBytes(out.spec));
    convert(bytes.data(), wireType_, out.spec.elements(), out.spec.dtype, out.data);
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
