// What quantising codecs do alike: reading tensors as fp32, and checking payloads.
#pragma once

#include <cstring>
#include <span>

#include "common/codec/codec.h"
#include "common/codec/raw.h"
#include "compression/kernels/kernels.h"

namespace cleave {

inline constexpr std::size_t kFormatBytes = 1;

// Elements that are worked on at once: they stay in the first-level cache, and at any width their
// codes fill whole bytes.
inline constexpr std::size_t kBlockElements = 1024;

// A tensor's elements as fp32, a block at a time.
class FloatReader {
 public:
  explicit FloatReader(const TensorView& view)
      : data_(view.data), dtype_(view.spec.dtype), size_(view.spec.elements()) {}
  FloatReader(const TensorView& view, std::size_t elements)
      : data_(view.data), dtype_(view.spec.dtype), size_(elements) {}

  std::size_t size() const { return size_; }
  // Elements start…start + count - 1: the tensor's own memory where it holds fp32, else `scratch`,
  // which has room for them. Requires start + count <= size().
  const float* read(std::size_t start, std::size_t count, float* scratch) const;
  // Requires j < size().
  float at(std::size_t j) const {
    float value = 0;
    return *read(j, 1, &value);
  }

 private:
  const std::byte* data_;
  DType dtype_;
  std::size_t size_;
};

// The raw payload of a tensor that packing would not make shorter. Throws NonFiniteError.
Encoded encodeFiniteRaw(const CodecContext& context, const TensorView& view,
                        std::span<std::byte> out);
// Throws ProtocolError where the first byte is another. Requires bytes.
void checkFormat(const Codec& codec, const CodecContext& context, std::span<const std::byte> bytes,
                 std::byte format, const TensorSpec& spec);

using kernels::packedBytes;

inline void putFloat(std::byte* out, float value) { std::memcpy(out, &value, sizeof value); }
inline float getFloat(const std::byte* in) {
  float value = 0;
  std::memcpy(&value, in, sizeof value);
  return value;
}

}  // namespace cleave
