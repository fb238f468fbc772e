#include "common/net/connection_messages.h"

#include <algorithm>
#include <cstdint>

#include "common/core/clock.h"
#include "common/core/printable.h"
#include "common/net/frames/metadata.h"
#include "proto/wire.pb.h"

namespace cleave {
namespace {

constexpr std::size_t kMaxCodeBytes = 64;

// The kinds have the same numbers on the wire. An unknown one ends the run.
ErrorKind kindFrom(wire::Failure::Kind kind) {
  return wire::Failure::Kind_IsValid(kind) ? static_cast<ErrorKind>(kind) : ErrorKind::run;
}

wire::Failure::Kind toWire(ErrorKind kind) {
  return kind == ErrorKind::interrupt ? wire::Failure::RUN : static_cast<wire::Failure::Kind>(kind);
}

double checkedRetry(double seconds) {
  constexpr double kMaxSeconds = 3600;
  return seconds > 0 && seconds <= kMaxSeconds ? seconds : 0;
}

std::uint64_t nanoseconds() {
  const auto sinceStart = now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(sinceStart).count());
}

}  // namespace

std::string pingMetadata() {
  wire::Ping ping;
  ping.set_sent(nanoseconds());
  return ping.SerializeAsString();
}

ClockSample clockOfPong(std::span<const std::byte> metadata) {
  const std::uint64_t came = nanoseconds();
  const auto pong = parseMetadata<wire::Pong>(FrameKind::pong, metadata);
  // The peer chooses these numbers, so any of them may wrap around.
  const auto difference = [](std::uint64_t a, std::uint64_t b) {
    return static_cast<std::int64_t>(a - b);
  };
  const auto atPeer = static_cast<double>(difference(pong.sent(), pong.ping_received()));
  const double between =
      static_cast<double>(difference(came, pong.ping_sent())) - std::max(0.0, atPeer);
  constexpr std::int64_t kMax = std::int64_t{1} << 62;
  const std::int64_t ahead =
      difference(pong.ping_received(), pong.ping_sent()) / 2 + difference(pong.sent(), came) / 2;
  return {std::max(0.0, between * 1e-9), std::clamp(ahead, -kMax, kMax),
          std::clamp(difference(pong.ping_received(), pong.ping_sent()), -kMax, kMax),
          std::clamp(difference(pong.ping_received(), 0), -kMax, kMax)};
}

std::string pongMetadata(std::span<const std::byte> ping) {
  wire::Pong pong;
  pong.set_ping_received(nanoseconds());
  pong.set_ping_sent(parseMetadata<wire::Ping>(FrameKind::ping, ping).sent());
  pong.set_sent(nanoseconds());
  return pong.SerializeAsString();
}

std::string byeMetadata(const std::string& reason) {
  wire::Bye bye;
  bye.set_reason(printable(reason));
  return bye.SerializeAsString();
}

std::string reasonFromBye(std::span<const std::byte> bye) {
  return parseMetadata<wire::Bye>(FrameKind::bye, bye).reason();
}

std::string failureMetadata(const Error& error) {
  wire::Failure failure;
  failure.set_code(printable(error.code(), kMaxCodeBytes));
  failure.set_sentence(printable(error.what()));
  failure.set_hint(printable(error.hint()));
  failure.set_retry_seconds(error.retrySeconds());
  failure.set_kind(toWire(error.kind()));
  return failure.SerializeAsString();
}

RunError errorFromFailure(std::span<const std::byte> failure) {
  try {
    const auto proto = parseMetadata<wire::Failure>(FrameKind::failure, failure);
    return RunError(kindFrom(proto.kind()), printable(proto.code(), kMaxCodeBytes),
                    proto.sentence(), proto.hint(), checkedRetry(proto.retry_seconds()));
  } catch (const ProtocolError& error) {
    return error;
  }
}

std::exception_ptr asError(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    return error;
  } catch (const std::exception& other) {
    return std::make_exception_ptr(RunError("internal-error", other.what()));
  } catch (...) {
    return std::make_exception_ptr(RunError("internal-error", "an unknown error occurred"));
  }
}

}  // namespace cleave
