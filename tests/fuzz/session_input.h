// The meaning of an input of the fuzz target `session`. Every byte string is valid. It has flags
// and then commands until the end. A command is a byte (modulo kCommands) followed by its fields;
// missing fields are 0.
//
//   tensor     a Tensor frame: stream, key, micro-batches, samples, codec, encoded bytes, payload
//   segment    a Segment frame: stream, offset, payload
//   received, step, bodyDone, stepOk, fetch     such a frame
//   raw        a frame of any kind with any metadata: kind, length of the metadata, metadata
//   work       the device runs the next actions: how many
//   begin      client: begins a batch if the last one is done: phase, samples
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>

#include "tests/fuzz/seeds.h"

namespace cleave::fuzz {

inline constexpr std::uint8_t kClient = 0x01;          // the client is tested; otherwise the server
inline constexpr std::uint8_t kCoded = 0x02;           // block:bits=8 on all flows, otherwise none
inline constexpr std::uint8_t kInitialWeights = 0x04;  // the client sends weights/body first

enum class Command : std::uint8_t {
  tensor,
  segment,
  received,
  step,
  bodyDone,
  stepOk,
  fetch,
  raw,
  work,
  begin
};
inline constexpr std::size_t kCommands = 10;

// The highest byte values encode unusual numbers; all others encode themselves.
inline constexpr std::array<std::uint64_t, 6> kSpecial = {
    std::uint64_t{1} << 31,
    std::numeric_limits<std::uint32_t>::max(),
    std::uint64_t{1} << 32,
    std::uint64_t{1} << 63,
    1000,
    std::numeric_limits<std::uint64_t>::max()};
inline constexpr std::uint8_t kFirstSpecial = 256 - kSpecial.size();

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool atEnd() const { return bytes_.empty(); }
  std::uint8_t byte() {
    if (bytes_.empty()) return 0;
    const auto value = std::to_integer<std::uint8_t>(bytes_[0]);
    bytes_ = bytes_.subspan(1);
    return value;
  }
  std::uint64_t number() {
    const std::uint8_t value = byte();
    return value < kFirstSpecial ? value : kSpecial[value - kFirstSpecial];
  }
  std::size_t twoBytes() {
    const std::size_t low = byte();
    return low | (std::size_t{byte()} << 8);
  }
  std::span<const std::byte> rest(std::size_t max) {
    const auto taken = bytes_.first(std::min(max, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace cleave::fuzz
