#include "common/net/notices.h"

#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cstdint>

#include "common/core/clock.h"
#include "proto/wire.pb.h"

namespace cleave {
namespace {

constexpr std::size_t kMaxCodeBytes = 64;
constexpr std::size_t kMaxTextBytes = 1024;

double checkedRetry(double seconds) {
  constexpr double kMostSeconds = 3600;
  return seconds > 0 && seconds <= kMostSeconds ? seconds : 0;
}

std::string cleaned(std::string text, std::size_t mostBytes) {
  if (text.size() > mostBytes) {
    while (mostBytes > 0 && (text[mostBytes] & 0xC0) == 0x80)
      --mostBytes;  // not within a character
    text.resize(mostBytes);
  }
  const auto isControl = [](char c) { return (c >= 0 && c < ' ') || c == 0x7F; };
  std::replace_if(text.begin(), text.end(), isControl, ' ');
  return text;
}

template <typename Proto>
Proto parse(std::span<const std::byte> metadata, const char* name) {
  Proto proto;
  if (!proto.ParseFromArray(metadata.data(), static_cast<int>(metadata.size()))) {
    throw ProtocolError("bad-metadata", std::string("the metadata of a ") + name + " is not valid");
  }
  return proto;
}

std::uint64_t nanoseconds() {
  const auto sinceStart = now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(sinceStart).count());
}

}  // namespace

void silenceProtobuf() { google::protobuf::SetLogHandler(nullptr); }

std::string printable(const std::string& text) { return cleaned(text, kMaxTextBytes); }

std::string pingMetadata() {
  wire::Ping ping;
  ping.set_sent(nanoseconds());
  return ping.SerializeAsString();
}

ClockSample clockOfPong(std::span<const std::byte> metadata) {
  const std::uint64_t came = nanoseconds();
  const auto pong = parse<wire::Pong>(metadata, "Pong");
  // The numbers are the peer's to choose: any of them may wrap around.
  const auto difference = [](std::uint64_t a, std::uint64_t b) {
    return static_cast<std::int64_t>(a - b);
  };
  const auto atPeer = static_cast<double>(difference(pong.sent(), pong.ping_received()));
  const double between =
      static_cast<double>(difference(came, pong.ping_sent())) - std::max(0.0, atPeer);
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  const std::int64_t ahead =
      difference(pong.ping_received(), pong.ping_sent()) / 2 + difference(pong.sent(), came) / 2;
  return {std::max(0.0, between * 1e-9), std::clamp(ahead, -kMost, kMost)};
}

std::string pongMetadata(std::span<const std::byte> ping) {
  wire::Pong pong;
  pong.set_ping_received(nanoseconds());
  pong.set_ping_sent(parse<wire::Ping>(ping, "Ping").sent());
  pong.set_sent(nanoseconds());
  return pong.SerializeAsString();
}

std::string byeMetadata(const std::string& reason) {
  wire::Bye bye;
  bye.set_reason(cleaned(reason, kMaxTextBytes));
  return bye.SerializeAsString();
}

std::string reasonFromBye(std::span<const std::byte> bye) {
  return cleaned(parse<wire::Bye>(bye, "Bye").reason(), kMaxTextBytes);
}

std::string failureMetadata(const Error& error) {
  wire::Failure failure;
  failure.set_code(cleaned(error.code(), kMaxCodeBytes));
  failure.set_sentence(cleaned(error.what(), kMaxTextBytes));
  failure.set_fix(cleaned(error.fix(), kMaxTextBytes));
  failure.set_retry_seconds(error.retrySeconds());
  return failure.SerializeAsString();
}

RunError errorFromFailure(std::span<const std::byte> failure) {
  try {
    const auto proto = parse<wire::Failure>(failure, "Failure");
    return RunError(cleaned(proto.code(), kMaxCodeBytes), cleaned(proto.sentence(), kMaxTextBytes),
                    cleaned(proto.fix(), kMaxTextBytes), checkedRetry(proto.retry_seconds()));
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
    return std::make_exception_ptr(RunError("internal-error", "something failed without a text"));
  }
}

}  // namespace cleave
