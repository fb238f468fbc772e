// Shared by the GPU implementations of codecs. Unusual cases use the host codec, through host
// memory: payloads that may be refused, raw tensors, and tensors whose range overflows fp32. The
// host codec's bytes and errors are correct by definition.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "common/codec/device_codec.h"
#include "common/codec/raw.h"
#include "compression/device/gpu.h"

namespace cleave {

// Keeps host memory passed to the GPU valid by waiting for the GPU on destruction, even if an
// exception is thrown.
class Issued {
 public:
  explicit Issued(Gpu& gpu) : gpu_(&gpu) {}
  Issued(const Issued&) = delete;
  Issued& operator=(const Issued&) = delete;
  ~Issued() {
    if (gpu_ == nullptr) return;
    try {
      gpu_->wait();
    } catch (...) {
      // The exception in flight already reports it.
    }
  }
  void wait() { std::exchange(gpu_, nullptr)->wait(); }

 private:
  Gpu* gpu_;
};

// An array in GPU memory.
template <typename T>
class Scratch {
 public:
  Scratch(Gpu& gpu, std::size_t count) : owner_(gpu.scratch(count * sizeof(T))) {}
  T* data() const { return reinterpret_cast<T*>(owner_.get()); }
  explicit Scratch(std::shared_ptr<std::byte> owner) : owner_(std::move(owner)) {}
  std::byte* bytes() const { return owner_.get(); }
  const std::shared_ptr<std::byte>& owner() const { return owner_; }

 private:
  std::shared_ptr<std::byte> owner_;
};

class GpuCodec : public DeviceCodec {
 public:
  GpuCodec(std::shared_ptr<const Codec> codec, Gpu& gpu) : codec_(std::move(codec)), gpu_(gpu) {}

  std::string spec() const override { return codec_->spec(); }
  std::size_t maxEncodedBytes(const TensorSpec& spec) const override {
    return codec_->maxEncodedBytes(spec);
  }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) const override {
    return gpu_.tensorMemory(bytes);
  }
  void copyToHost(const std::byte* from_dev, std::size_t bytes, std::byte* to) const override;

 protected:
  // Whether kernels can process the tensor: fewer than 2^30 elements, aligned to 16 bytes.
  static bool isOrdinary(const TensorSpec& spec, const std::byte* data_dev);

  Encoded encodeOnHost(const CodecContext& context, const CodecState& state, CutContext& cut,
                       const TensorView& view, std::span<std::byte> out) const;
  CodecState decodeOnHost(const CodecContext& context, const CodecState& state, CutContext& cut,
                          std::span<const std::byte> bytes, const MutableTensorView& out) const;

  static device::Input inputOf(const TensorView& view) {
    return {view.data, view.spec.elements(), view.spec.dtype};
  }
  static device::Output outputOf(const MutableTensorView& out) {
    return {out.data, out.spec.elements(), out.spec.dtype};
  }

  const std::shared_ptr<const Codec> codec_;
  Gpu& gpu_;
};

}  // namespace cleave
