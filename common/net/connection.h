// One TCP connection: reads payloads directly into their destination, writes frames from an outbox
// by priority, sends Pings. Everything runs on the io thread unless stated otherwise.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/experimental/channel.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "common/core/clock.h"
#include "common/core/error.h"
#include "common/net/background_window.h"
#include "common/net/connection_end.h"
#include "common/net/connection_messages.h"
#include "common/net/connection_options.h"
#include "common/net/frame_stream.h"
#include "common/net/frames/frame.h"
#include "common/net/frames/outbox.h"
#include "common/net/frames/peer_limits.h"
#include "common/net/rate_meters.h"
#include "common/net/streams/tls.h"
#include "common/net/throttle.h"

namespace cleave {

// Maximum frames and tensors waiting to be sent, far more than credits allow. The limit prevents a
// peer that causes answers and does not read them from filling our memory.
inline constexpr std::size_t kMaxQueued = 1 << 16;

// Receives frames after the handshake. Exceptions from these functions end the connection.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // Called when a Tensor's or Segment's header and metadata have been read and are within their
  // caps. Returns the memory (header.payloadBytes bytes) to read the payload into. It must stay
  // valid until receivedFrame() or the end of the connection.
  virtual std::span<std::byte> placePayload(const FrameHeader& header,
                                            std::span<const std::byte> metadata) = 0;
  // A complete frame with a verified checksum. `payload` is the memory from placePayload(); empty
  // for control frames. The connection handles Ping and Pong itself.
  virtual void receivedFrame(const FrameHeader& header, std::span<const std::byte> metadata,
                             std::span<const std::byte> payload) = 0;
};

// A connection must not be moved while one of its coroutines runs.
class Connection {
 public:
  // Sets TCP_NODELAY, TCP_NOTSENT_LOWAT and TCP_USER_TIMEOUT.
  Connection(boost::asio::ip::tcp::socket socket, ConnectionOptions options);

  // The handshake: one control frame in each direction, before run(). readHandshakeFrame waits at
  // most helloDeadline, and accepts at most kMaxHandshakeBytes. The first call does the TLS
  // handshake first, within tlsDeadline. Both functions throw Error with codes such as "not-cleave"
  // (the peer speaks another protocol), "version-mismatch", "hello-timeout", "connection-closed"; a
  // Failure from the peer is thrown as in run(). If our side found the fault, it sends the peer a
  // Failure, unless the peer does not speak Cleave.
  struct HandshakeFrame {
    FrameKind kind;
    std::string metadata;
  };
  boost::asio::awaitable<HandshakeFrame> readHandshakeFrame(ConnectionState state);
  boost::asio::awaitable<void> writeHandshakeFrame(FrameKind kind, std::string metadata);

  // Serves both directions until the peer has sent Bye, and returns its reason. Otherwise throws
  // the Error that ended the connection, never multiple_exceptions. If our side found the fault, a
  // Failure is sent to the peer before the close (for at most a second). A Failure from the peer is
  // thrown as RunError with its code, sentence and hint.
  boost::asio::awaitable<std::string> run(FrameSink& sink);

  // Frames to be sent. Call wake() after adding to it.
  Outbox& outbox() { return outbox_; }
  void wake();
  // Ends run(): it sends everything queued, then Bye, waits for the peer's Bye or the end of the
  // stream (at most 2 s), and returns.
  void sayBye(std::string reason);
  // Ends run() with `error`, which is sent to the peer as a Failure. The first cause wins.
  void fail(std::exception_ptr error);
  // After run(): whether our side found the fault that ended it.
  bool hasFoundFault() const { return end_.state() == EndState::failing; }
  // Closes immediately without a message; everything that waits for the peer fails with
  // "connection-lost".
  void abandon() { stream_.close(); }

  // From now on, `throttle` limits this connection together with the others that share it.
  void throttleBy(std::shared_ptr<Throttle> throttle) { throttle_ = std::move(throttle); }

  // Sends a Ping. Its Pong measures the round trip if nothing else is in flight.
  void ping();

  // Any thread.
  ByteCounts bytes() const;
  LinkInfo linkInfo() const;
  // Bytes per second; 0 until known. See RateMeter.
  double sendRate() const { return sendMeter_.rate(); }
  double receiveRate() const { return receiveMeter_.rate(); }
  double peakSent() const { return peakSent_.peak(); }  // see PeakMeter
  double peakReceived() const { return peakReceived_.peak(); }
  // The sample with the shortest round trip among the last 16 Pongs; all 0 before the first Pong.
  ClockSample clock() const;
  // The client's name, from its certificate. Only on a server with TLS, after the first handshake
  // frame; otherwise empty.
  const std::string& identity() const { return stream_.identity(); }
  bool isWithinTls() const { return options_.tls != nullptr; }
  // See ByteStream.
  void checkPeerAgain(const TlsContext& context) const { stream_.checkPeerAgain(context); }
  // When a frame other than Ping or Pong was last received or sent.
  SteadyTime lastActivity() const { return lastActivity_; }
  // "127.0.0.1:4000"; empty if the socket was never connected.
  const std::string& peer() const { return peer_; }
  // The current segment size: segmentBytesFor(sendRate()).
  std::size_t segmentBytes() const { return segmentBytes_.load(std::memory_order_relaxed); }

 private:
  boost::asio::awaitable<void> secure();
  boost::asio::awaitable<void> drainBriefly();
  boost::asio::awaitable<void> receiveHandshake(ConnectionState state, HandshakeFrame& frame);
  boost::asio::awaitable<void> sayFailure();

  // The three coroutines of run(). None of them throws: an error that ends one of them ends the
  // others through end_.
  boost::asio::awaitable<void> readUntilEnd(FrameSink& sink);
  boost::asio::awaitable<void> writeUntilEnd();
  boost::asio::awaitable<void> watch();

  boost::asio::awaitable<void> readFrames(FrameSink& sink);
  boost::asio::awaitable<void> writeFrames();
  boost::asio::awaitable<void> nextReasonToWrite(SteadyTime time);
  boost::asio::awaitable<void> writeOne();
  boost::asio::awaitable<void> throttled(boost::asio::steady_timer& timer, std::size_t bytes);
  void spendAllowance(const FrameHeader& header, SteadyTime time);
  void noteActivity(FrameKind kind);
  void notePing();
  void streamEnded(const boost::system::error_code& error);
  void failUnsent(std::exception_ptr error);
  void endChanged();
  RunError lost(const boost::system::error_code& error, const std::string& when) const;
  ProtocolError silent();
  ProtocolError notReading() const;
  std::chrono::milliseconds longestSilence() const {
    return options_.pingEvery + options_.pingTimeout;
  }
  std::string peerName() const { return peer_.empty() ? "the peer" : peer_; }
  void receivedPong(std::span<const std::byte> metadata);
  void tuneSegments();

  const ConnectionOptions options_;
  const std::string peer_;
  bool isSecure_ = false;
  boost::asio::experimental::channel<void(boost::system::error_code)> wakeUp_;  // holds one wake()
  boost::asio::steady_timer watchTimer_;
  boost::asio::steady_timer readPause_, writePause_;  // see throttled()
  std::shared_ptr<Throttle> throttle_;                // null: none
  FrameStream stream_;
  Outbox outbox_;
  RateMeter sendMeter_, receiveMeter_;
  PeakMeter peakSent_, peakReceived_;
  ControlAllowance allowance_{now()};
  BackgroundWindow background_;
  SteadyTime lastActivity_ = now();
  // When the oldest unanswered Ping was sent, as far as known.
  std::optional<SteadyTime> unanswered_;
  // While a frame is being written: the deadline for the peer to accept it.
  std::optional<SteadyTime> writtenBy_;
  std::atomic<std::size_t> segmentBytes_{kMinSegmentBytes};  // until a rate has been measured
  std::deque<ClockSample> pongs_;
  mutable std::mutex clockMutex_;
  ClockSample clock_;

  ConnectionEnd end_;  // call endChanged() after each of its events
};

}  // namespace cleave
