#include "compression/device/gpu_codec.h"

#include <cstdint>

#include "common/resources/buffer.h"

namespace cleave {
namespace {

// A buffer in host memory with the alignment of tensors.
class HostTensor {
 public:
  explicit HostTensor(std::size_t bytes)
      : pool_(0), buffer_(pool_.acquire(bytes == 0 ? 1 : bytes)) {}
  std::byte* data() { return buffer_.data(); }

 private:
  BufferPool pool_;
  Buffer buffer_;
};

}  // namespace

void GpuCodec::copyToHost(const std::byte* from_dev, std::size_t bytes, std::byte* to) const {
  if (bytes == 0) return;
  Issued issued(gpu_);
  gpu_.copyOut(from_dev, bytes, to);
  issued.wait();
}

bool GpuCodec::isOrdinary(const TensorSpec& spec, const std::byte* data_dev) {
  constexpr std::uintptr_t kBoundary = 16;
  const std::size_t elements = spec.elements();
  return elements > 0 && elements < std::size_t{1} << 30 &&
         reinterpret_cast<std::uintptr_t>(data_dev) % kBoundary == 0;
}

Encoded GpuCodec::encodeOnHost(const CodecContext& context, const CodecState& state,
                               CutContext& cut, const TensorView& view,
                               std::span<std::byte> out) const {
  HostTensor tensor(view.spec.bytes());
  copyToHost(view.data, view.spec.bytes(), tensor.data());
  return codec_->encode(context, state, cut, {tensor.data(), view.spec}, out);
}

CodecState GpuCodec::decodeOnHost(const CodecContext& context, const CodecState& state,
                                  CutContext& cut, std::span<const std::byte> bytes,
                                  const MutableTensorView& out) const {
  HostTensor tensor(out.spec.bytes());
  CodecState after = codec_->decode(context, state, cut, bytes, {tensor.data(), out.spec});
  if (out.spec.bytes() > 0) {
    Issued issued(gpu_);
    gpu_.copyIn(tensor.data(), out.spec.bytes(), out.data);
    issued.wait();
  }
  return after;
}

}  // namespace cleave
