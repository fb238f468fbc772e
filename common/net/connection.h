// One TCP connection: reads frames into where their payload belongs, writes frames from an outbox by priority, pings.
// Everything here runs on the io thread.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/net/frame.h"
#include "common/net/outbox.h"

namespace cleave {

struct ConnectionOptions {
  std::chrono::milliseconds helloDeadline{5000};
  std::chrono::milliseconds pingEvery{15000};
  std::chrono::milliseconds pingTimeout{20000};  // no byte for pingEvery + pingTimeout: the peer is gone
  bool checksum = true;
};

// Bytes on the wire, headers and metadata included. Control is all but Tensor and Segment frames.
struct ByteCounts {
  std::uint64_t controlSent = 0;
  std::uint64_t controlReceived = 0;
  std::uint64_t tensorSent = 0;
  std::uint64_t tensorReceived = 0;
};

// The kernel's view (TCP_INFO).
struct LinkInfo {
  double deliveryRate = 0;        // bytes a second
  double roundTripSeconds = 0;
  std::uint64_t retransmits = 0;  // segments, total
};

// Takes what arrives after the handshake. What these functions throw ends the connection.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // Called with a Tensor's or Segment's header and metadata once they are read and within their caps: returns the
  // memory (header.payloadBytes of it) that the payload is read into. It must stay valid until receivedFrame() or the
  // connection's end.
  virtual std::span<std::byte> placePayload(const FrameHeader& header,
                                            std::span<const std::byte> metadata) = 0;
  // A whole frame, its checksum verified. `payload` is the memory from placePayload; empty for control frames. Ping and
  // Pong are dealt with by the connection and do not come here.
  virtual void receivedFrame(const FrameHeader& header, std::span<const std::byte> metadata,
                             std::span<const std::byte> payload) = 0;
};

class Connection {
 public:
  // Sets TCP_NODELAY, TCP_NOTSENT_LOWAT and TCP_USER_TIMEOUT.
  Connection(boost::asio::ip::tcp::socket socket, ConnectionOptions options);

  // The handshake: one control frame each way, before run(). readHandshakeFrame waits at most helloDeadline, and takes at
  // most kMaxHandshakeBytes. Throw Error with codes such as "not-cleave" (the peer speaks something else),
  // "version-mismatch", "hello-timeout", "connection-closed".
  struct HandshakeFrame {
    FrameKind kind;
    std::string metadata;
  };
  boost::asio::awaitable<HandshakeFrame> readHandshakeFrame(ConnectionState state);
  boost::asio::awaitable<void> writeHandshakeFrame(FrameKind kind, std::string metadata);

  // Serves both directions until the peer has said Bye (returns its reason), or throws what ended the connection: one
  // Error, never multiple_exceptions. Where our side found the fault, the peer is told with a Failure before the close (for
  // at most a second). A Failure from the peer is thrown as RunError with its code, sentence and fix.
  boost::asio::awaitable<std::string> run(FrameSink& sink);

  // What is to be sent. Call wake() after adding to it.
  Outbox& outbox() { return outbox_; }
  void wake();
  // Ends run(): it sends what is queued, then Bye, waits for the peer's Bye or the end of the stream (at most 2 s),
  // and returns.
  void sayBye(std::string reason);
  // Ends run() with `error`, which the peer is told as a Failure. The first cause given wins.
  void fail(std::exception_ptr error);

  // Any thread.
  ByteCounts bytes() const;
  LinkInfo linkInfo() const;
  // "127.0.0.1:4000"; empty where the socket was never connected.
  const std::string& peer() const { return peer_; }
  // The segment size in force: clamp(delivery rate x 5 ms, kMinSegmentBytes, kMaxSegmentBytes).
  std::size_t segmentBytes() const { return segmentBytes_; }

 private:
  boost::asio::ip::tcp::socket socket_;
  ConnectionOptions options_;
  Outbox outbox_;
  std::string peer_;
  std::size_t segmentBytes_ = kMaxSegmentBytes;
};

}  // namespace cleave
