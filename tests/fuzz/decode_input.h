// The meaning of a fuzz input. Every byte string is valid, so that mutations stay valid:
//
//   input = flags, codec, activation codec, rank, 4 dimensions, activation's length, the rest
// The rest is a payload for the decoder, or the elements of a tensor for the encoder. With the flag
// kAfter, the rest begins with an activation of the same cut, which has the given length in bytes.
// With the bit kRestore in the rank, the rest instead begins with a saved state of the codec, of
// that length, and continues with the elements of a tensor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/codec/tensor.h"
#include "common/topology/key.h"
#include "tests/fuzz/seeds.h"

namespace cleave::fuzz {

inline constexpr std::uint8_t kEncode = 0x01;     // otherwise the rest is decoded
inline constexpr std::uint8_t kEval = 0x02;       // evaluation; otherwise training
inline constexpr std::uint8_t kGradient = 0x04;   // a gradient; otherwise an activation
inline constexpr std::uint8_t kAfter = 0x08;      // an activation of the same cut comes first
inline constexpr std::uint8_t kDType = 0x30;      // 0x00 and 0x30 f32, 0x10 f16, 0x20 bf16
inline constexpr std::uint8_t kLast = 0x40;       // channels-last if the rank is 4
inline constexpr std::uint8_t kUnaligned = 0x80;  // payload and tensor at odd addresses
inline constexpr std::uint8_t kRestore = 0x80;    // in the rank
inline constexpr std::uint32_t kSamples = 64;     // of a restored cache
inline constexpr std::size_t kHeaderBytes = 12;
inline constexpr std::size_t kMaxInputBytes = kHeaderBytes + 8192;

struct Input {
  std::uint8_t flags = 0;
  std::uint16_t codec = 0;       // a hash; selects the codec with the next hash in order
  std::uint16_t activation = 0;  // hash that selects the codec of the activation
  std::uint8_t rank = 0;
  std::array<std::uint8_t, 4> dimensions{};
  std::uint16_t activationBytes = 0;
  std::span<const std::byte> rest;
};

// The hash does not depend on the table, so that an input selects the same codec after other codecs
// are added.
inline std::uint16_t hashOf(std::string_view spec) {
  std::uint32_t hash = 2166136261;  // FNV-1a
  for (const char c : spec) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619;
  return static_cast<std::uint16_t>(hash ^ (hash >> 16));
}

inline std::uint16_t twoBytes(std::byte low, std::byte high) {
  return static_cast<std::uint16_t>(std::to_integer<unsigned>(low) |
                                    (std::to_integer<unsigned>(high) << 8));
}

// Requires at least kHeaderBytes bytes.
inline Input read(std::span<const std::byte> bytes) {
  Input input;
  input.flags = std::to_integer<std::uint8_t>(bytes[0]);
  input.codec = twoBytes(bytes[1], bytes[2]);
  input.activation = twoBytes(bytes[3], bytes[4]);
  input.rank = std::to_integer<std::uint8_t>(bytes[5]);
  for (std::size_t d = 0; d < 4; ++d)
    input.dimensions[d] = std::to_integer<std::uint8_t>(bytes[6 + d]);
  input.activationBytes = twoBytes(bytes[10], bytes[11]);
  input.rest = bytes.subspan(kHeaderBytes);
  return input;
}

inline Bytes write(const Input& input) {
  const auto byte = [](unsigned value) { return static_cast<std::byte>(value); };
  Bytes bytes = {byte(input.flags),
                 byte(input.codec),
                 byte(input.codec >> 8u),
                 byte(input.activation),
                 byte(input.activation >> 8u),
                 byte(input.rank)};
  for (const std::uint8_t dimension : input.dimensions) bytes.push_back(byte(dimension));
  bytes.push_back(byte(input.activationBytes));
  bytes.push_back(byte(input.activationBytes >> 8u));
  bytes.insert(bytes.end(), input.rest.begin(), input.rest.end());
  return bytes;
}

// At most 2,303 elements, which is more than two blocks of every codec.
inline TensorSpec specOf(const Input& input) {
  const auto& d = input.dimensions;
  const auto within = [](unsigned value, unsigned max) {
    return static_cast<std::int64_t>(value % (max + 1));
  };
  TensorSpec spec;
  constexpr std::array kTypes = {DType::f32, DType::f16, DType::bf16, DType::f32};
  spec.dtype = kTypes[(input.flags & kDType) >> 4];
  switch ((input.rank & ~kRestore) % 5) {
    case 0:
      break;
    case 1:
      spec.shape = {within(d[0] + 256u * d[1], 2303)};
      break;
    case 2:
      spec.shape = {within(d[0], 47), within(d[1], 48)};
      break;
    case 3:
      spec.shape = {within(d[0], 4), within(d[1], 15), within(d[2], 30)};
      break;
    default:
      spec.shape = {within(d[0], 4), within(d[1], 9), within(d[2], 7), within(d[3], 7)};
      if ((input.flags & kLast) != 0) spec.order = MemoryOrder::channelsLast;
  }
  return spec;
}

inline Key keyOf(const Input& input) {
  const Phase phase = (input.flags & kEval) != 0 ? Phase::eval : Phase::train;
  return {phase, 3, 1, (input.flags & kGradient) != 0 ? gradientAt(0) : activationAt(0)};
}

}  // namespace cleave::fuzz
