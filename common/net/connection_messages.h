// Messages about the connection itself: Ping, Pong, Failure and Bye, converted between plain values
// and metadata.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <string>

#include "common/core/error.h"

namespace cleave {

std::string pingMetadata();
// pongMetadata(), clockOfPong() and reasonFromBye() throw ProtocolError "bad-metadata".
std::string pongMetadata(std::span<const std::byte> ping);

// Measurements from a Ping and its Pong: round trip and clocks.
struct ClockSample {
  double roundTripSeconds = 0;  // from Ping to Pong, minus the peer's delay between them; >= 0
  // Nanoseconds by which the peer's steady clock is ahead of ours, accurate to half the round trip;
  // between -2^62 and 2^62.
  std::int64_t ahead = 0;
  // Nanoseconds from sending the Ping, by our clock, to its arrival, by the peer's clock.
  std::int64_t forward = 0;
  std::int64_t arrived = 0;  // when the Ping arrived, in nanoseconds by the peer's clock
};
ClockSample clockOfPong(std::span<const std::byte> pong);
std::string reasonFromBye(std::span<const std::byte> bye);

std::string byeMetadata(const std::string& reason);
// The result is short enough for a handshake frame.
std::string failureMetadata(const Error& error);
// Returns the error that the peer sent in a Failure or Refused, which have the same fields; an
// error "bad-metadata" if it cannot be parsed.
RunError errorFromFailure(std::span<const std::byte> failure);

// Returns `error` itself if it holds an Error; otherwise an "internal-error" with its text.
std::exception_ptr asError(std::exception_ptr error);

}  // namespace cleave
