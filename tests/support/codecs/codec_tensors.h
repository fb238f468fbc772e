// Helpers of the codec tests: tensors in heap blocks of exactly their size, so that
// AddressSanitizer detects any access beyond their ends, and functions that encode and decode and
// check what is written.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "common/codec/codec.h"
#include "compression/parts/convert.h"

namespace cleave::test {

using Bytes = std::vector<std::byte>;

inline const Key kKey{Phase::train, 3, 1, gradientAt(0)};

struct Tensor {
  TensorSpec spec;
  Bytes bytes;

  TensorView view() const { return {bytes.data(), spec}; }
};

inline Tensor tensorOf(const std::vector<float>& values, DType dtype = DType::f32) {
  Tensor tensor{{dtype, {static_cast<std::int64_t>(values.size())}}, {}};
  tensor.bytes.resize(tensor.spec.bytes());
  fromFloat(values.data(), values.size(), dtype, tensor.bytes.data());
  return tensor;
}

inline std::vector<float> valuesOf(const Tensor& tensor) {
  std::vector<float> values(tensor.spec.elements());
  toFloat(tensor.bytes.data(), tensor.spec.dtype, values.size(), values.data());
  return values;
}

// Encodes over memory filled with `fill`; checks that encode stays within its buffer.
inline Bytes encodeOver(std::byte fill, const Codec& codec, const Tensor& tensor,
                        ForkJoinPair* helper = nullptr) {
  constexpr std::size_t kGuard = 64;
  const std::size_t max = codec.maxEncodedBytes(tensor.spec);
  Bytes out(max + kGuard, fill);
  CutContext cut;
  const Encoded encoded =
      codec.encode({7, kKey, helper}, nullptr, cut, tensor.view(), {out.data(), max});
  REQUIRE(encoded.bytes <= max);
  REQUIRE(std::all_of(out.begin() + static_cast<std::ptrdiff_t>(encoded.bytes), out.end(),
                      [fill](std::byte b) { return b == fill; }));
  return {out.begin(), out.begin() + static_cast<std::ptrdiff_t>(encoded.bytes)};
}

// Encodes into two buffers with different contents. Equal results show that every byte is written.
inline Bytes encode(const Codec& codec, const Tensor& tensor) {
  const Bytes bytes = encodeOver(std::byte{0xa5}, codec, tensor);
  REQUIRE((encodeOver(std::byte{0x5a}, codec, tensor) == bytes));
  return bytes;
}

inline Tensor decodeOver(std::byte fill, const Codec& codec, const Bytes& bytes,
                         const TensorSpec& spec, ForkJoinPair* helper = nullptr) {
  Tensor tensor{spec, Bytes(spec.bytes(), fill)};
  CutContext cut;
  codec.decode({7, kKey, helper}, nullptr, cut, bytes, {tensor.bytes.data(), spec});
  return tensor;
}

inline Tensor decode(const Codec& codec, const Bytes& bytes, const TensorSpec& spec) {
  Tensor tensor = decodeOver(std::byte{0xa5}, codec, bytes, spec);
  REQUIRE((decodeOver(std::byte{0x5a}, codec, bytes, spec).bytes == tensor.bytes));
  return tensor;
}

// Signal-to-noise ratio in dB; infinite if the values are equal.
inline double snrOf(const std::vector<float>& values, const std::vector<float>& decoded) {
  double signal = 0;
  double noise = 0;
  for (std::size_t j = 0; j < values.size(); ++j) {
    signal += double{values[j]} * double{values[j]};
    noise += std::pow(double{values[j]} - double{decoded[j]}, 2);
  }
  return 10 * std::log10(signal / noise);
}

// The signal-to-noise ratio of the tensor and its decoded version.
inline double snr(const Codec& codec, const Tensor& tensor) {
  return snrOf(valuesOf(tensor), valuesOf(decode(codec, encode(codec, tensor), tensor.spec)));
}

}  // namespace cleave::test
