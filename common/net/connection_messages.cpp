#include "common/net/connection_messages.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "common/core/clock.h"
#include "common/core/printable.h"
#include "common/net/metadata.h"
#include "proto/wire.pb.h"

namespace cleave {
namespace {

constexpr std::size_t kMaxCodeBytes = 64;

// Faults of the configuration, the data or the model that a peer may find: it reports an error that
// is a UsageError on its side. All other faults may be temporary.
constexpr std::string_view kWrongUse[] = {"bad-run-spec",
                                          "unknown-model",
                                          "model-not-allowed",
                                          "bad-graph",
                                          "bad-model-parameter",
                                          "bad-sample-shape",
                                          "bad-classes",
                                          "bad-cuts",
                                          "unknown-codec",
                                          "bad-codec-spec",
                                          "unknown-schedule",
                                          "bad-in-flight",
                                          "bad-staleness",
                                          "no-replicas",
                                          "wrong-replica",
                                          "unknown-optimizer",
                                          "bad-optimizer-parameter",
                                          "bad-wait",
                                          "wait-not-allowed",
                                          "bad-run-id",
                                          "probe-not-allowed",
                                          "unknown-identity",
                                          "others-run",
                                          "bad-precision",
                                          "bad-insert",
                                          "edges-not-accepted",
                                          "edge-not-allowed",
                                          "run-exists",
                                          "other-run-spec",
                                          "bad-index",
                                          "bad-weights",
                                          "bad-safetensors"};

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
  return failure.SerializeAsString();
}

RunError errorFromFailure(std::span<const std::byte> failure) {
  try {
    const auto proto = parseMetadata<wire::Failure>(FrameKind::failure, failure);
    const bool isWrongUse =
        std::find(std::begin(kWrongUse), std::end(kWrongUse), proto.code()) != std::end(kWrongUse);
    return RunError(printable(proto.code(), kMaxCodeBytes), proto.sentence(), proto.hint(),
                    checkedRetry(proto.retry_seconds()), isWrongUse ? 2 : 1);
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
