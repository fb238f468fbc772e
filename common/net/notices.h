// What connections themselves say to each other: Ping, Pong, Failure and Bye, between plain values
// and metadata. Text from a peer ends in logs and on terminals, so it is cut to a length and freed
// from control characters.
#pragma once

#include <exception>
#include <span>
#include <string>

#include "common/core/error.h"

namespace cleave {

std::string pingMetadata();
// Throw ProtocolError "bad-metadata".
std::string pongMetadata(std::span<const std::byte> ping);
// Seconds from our Ping to its Pong, less those between the two at the peer; at least 0.
double roundTripOfPong(std::span<const std::byte> pong);
std::string reasonFromBye(std::span<const std::byte> bye);

std::string byeMetadata(const std::string& reason);
// Fits a handshake frame too.
std::string failureMetadata(const Error& error);
// What the peer says has failed, or why it refuses: Failure and Refused have the same fields;
// "bad-metadata" where even that cannot be read.
RunError errorFromFailure(std::span<const std::byte> failure);

// A text with something of a peer's in it, fit for a log: of bounded length, on one line.
std::string printable(const std::string& text);

// `error` itself where it holds an Error; else an "internal-error" with its text.
std::exception_ptr asError(std::exception_ptr error);

}  // namespace cleave
