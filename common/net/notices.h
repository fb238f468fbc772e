// What connections themselves say to each other: Ping, Pong, Failure and Bye, between plain values
// and metadata.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <string>

#include "common/core/error.h"

namespace cleave {

std::string pingMetadata();
// Throw ProtocolError "bad-metadata".
std::string pongMetadata(std::span<const std::byte> ping);

// What a Ping and its Pong say of link and clocks.
struct ClockSample {
  double roundTripSeconds = 0;  // from Ping to Pong, less those between the two at the peer; >= 0
  // Nanoseconds that the peer's steady clock is ahead of ours, known to within half the round trip;
  // at most 2^62 either way.
  std::int64_t ahead = 0;
  // Nanoseconds from the Ping's sending, by our clock, to its arrival, by the peer's.
  std::int64_t forward = 0;
};
ClockSample clockOfPong(std::span<const std::byte> pong);
std::string reasonFromBye(std::span<const std::byte> bye);

std::string byeMetadata(const std::string& reason);
// Fits a handshake frame too.
std::string failureMetadata(const Error& error);
// What the peer says has failed, or why it refuses: Failure and Refused have the same fields;
// "bad-metadata" where even that cannot be read.
RunError errorFromFailure(std::span<const std::byte> failure);

// `error` itself where it holds an Error; else an "internal-error" with its text.
std::exception_ptr asError(std::exception_ptr error);

}  // namespace cleave
