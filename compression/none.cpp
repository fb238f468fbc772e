// `none`: the tensor's own bytes.
#include <cstring>

#include "compression/codecs.h"

namespace cleave {
namespace {

class None : public Codec {
 public:
  std::string spec() const override { return "none"; }
  bool isIdentity() const override { return true; }
  std::size_t maxEncodedBytes(const TensorSpec& spec) const override { return spec.bytes(); }

  Encoded encode(const CodecContext&, const CodecState&, CutContext&, const TensorView& view,
                 std::span<std::byte> out) const override {
    const std::size_t bytes = view.spec.bytes();
    if (bytes > 0) std::memcpy(out.data(), view.data, bytes);
    return {bytes, nullptr};
  }

  CodecState decode(const CodecContext& context, const CodecState&, CutContext&,
                    std::span<const std::byte> bytes, MutableTensorView out) const override {
    checkPayloadSize(*this, context.key, bytes.size(), out.spec.bytes());
    if (!bytes.empty()) std::memcpy(out.data, bytes.data(), bytes.size());
    return nullptr;
  }
};

}  // namespace

std::unique_ptr<Codec> makeNone(const CodecSpec& spec) {
  CodecParameters(spec).finish();
  return std::make_unique<None>();
}

}  // namespace cleave
