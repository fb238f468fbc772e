#include "common/net/connection_messages.h"

#include <algorithm>
#include <cstdint>

#include "common/core/clock.h"
#include "common/core/printable.h"
#include "common/net/frames/failure.h"
#include "common/net/frames/metadata.h"
#include "proto/wire.pb.h"

namespace cleave {
namespace {

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

std::string failureMetadata(const Error& error) { return failureOf(error).SerializeAsString(); }

RunError errorFromFailure(std::span<const std::byte> failure) {
  try {
    return errorOf(parseMetadata<wire::Failure>(FrameKind::failure, failure));
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
