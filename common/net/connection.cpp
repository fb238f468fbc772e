#include "common/net/connection.h"

#include <algorithm>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <sstream>
#include <utility>

#include "common/net/connection_messages.h"
#include "common/net/frames/metadata.h"
#include "common/net/streams/tls_stream.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
using namespace asio::experimental::awaitable_operators;
using asio::awaitable;
using asio::use_awaitable;
using boost::system::error_code;
using boost::system::system_error;
using std::chrono::milliseconds;

constexpr std::size_t kPongs = 16;

std::string nameOf(const asio::ip::tcp::socket& socket) {
  error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error) return {};
  std::ostringstream name;
  name << endpoint;
  return name.str();
}

constexpr const char* kNoHelloHint =
    "check that host and port are those of a Cleave program, and that it is not stopped or "
    "overloaded";

std::string secondsText(milliseconds time) {
  std::ostringstream text;
  text << std::chrono::duration<double>(time).count() << " s";
  return text.str();
}

// Runs `task`, and cancels it after `time`. Returns whether it completed in time; rethrows what it
// threw.
awaitable<bool> endsWithin(milliseconds time, awaitable<void> task) {
  asio::steady_timer timer(co_await asio::this_coro::executor, time);
  std::exception_ptr error;
  // || waits for a success: if the task threw, || would still wait for the timer.
  const auto guarded = [&]() -> awaitable<void> {
    try {
      co_await std::move(task);
    } catch (...) {
      error = std::current_exception();
    }
  };
  const auto first = co_await (guarded() || timer.async_wait(use_awaitable));
  if (first.index() == 1) co_return false;
  if (error) std::rethrow_exception(error);
  co_return true;
}

std::unique_ptr<ByteStream> makeByteStream(asio::ip::tcp::socket socket,
                                           const ConnectionOptions& options) {
  if (!options.tls) return std::make_unique<PlainStream>(std::move(socket));
  return std::make_unique<TlsStream>(std::move(socket), options.tls, options.serverName,
                                     options.frame);
}

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket, ConnectionOptions options)
    : options_(std::move(options)),
      peer_(nameOf(socket)),
      wakeUp_(socket.get_executor(), 1),
      watchTimer_(socket.get_executor()),
      readPause_(socket.get_executor()),
      writePause_(socket.get_executor()),
      stream_(makeByteStream(std::move(socket), options_), options_.checksum && !options_.tls,
              options_.frame) {
  silenceProtobuf();
  stream_.limitUnsent(segmentBytes());
}

// ---- Handshake ----

awaitable<void> Connection::secure() {
  if (isSecure_ || !options_.tls) co_return;
  try {
    isSecure_ = co_await endsWithin(options_.tlsDeadline, stream_.secure());
    if (isSecure_) co_return;
    throw RunError(ErrorKind::link, "tls-timeout",
                   peerName() + " did not complete the TLS handshake within " +
                       secondsText(options_.tlsDeadline),
                   "check that host and port are those of a Cleave server with tls.enabled")
        .about("tls.enabled");
  } catch (const system_error& error) {
    failUnsent(std::make_exception_ptr(lost(error.code(), "during the TLS handshake")));
  } catch (const Error&) {
    failUnsent(std::current_exception());
  }
  stream_.endWriting();
  co_await drainBriefly();
  std::rethrow_exception(end_.error());
}

// Unread bytes would turn the close into a reset, which may overtake what was sent to the peer.
awaitable<void> Connection::drainBriefly() {
  try {
    co_await endsWithin(kFailureWait, stream_.drain());
  } catch (const system_error&) {
    // The peer closed the connection, as expected.
  }
}

awaitable<Connection::HandshakeFrame> Connection::readHandshakeFrame(ConnectionState state) {
  co_await secure();
  HandshakeFrame frame{};
  try {
    if (co_await endsWithin(options_.helloDeadline, receiveHandshake(state, frame)))
      co_return frame;
    throw RunError(ErrorKind::link, "hello-timeout",
                   peerName() + " did not complete its part of the handshake within " +
                       secondsText(options_.helloDeadline),
                   kNoHelloHint);
  } catch (const system_error& error) {
    failUnsent(std::make_exception_ptr(lost(error.code(), "before the handshake was done")));
  } catch (const NotCleave&) {
    failUnsent(std::current_exception());
  } catch (const Error&) {
    fail(std::current_exception());
  }
  if (end_.state() == EndState::failing) {
    const auto send = [this]() -> awaitable<void> {
      co_await sayFailure();
      co_await stream_.drain();  // for the reason, see readUntilEnd()
    };
    try {
      co_await endsWithin(kFailureWait, send());
    } catch (const system_error&) {
      // The peer closed the connection, as expected.
    }
  }
  std::rethrow_exception(end_.error());
}

awaitable<void> Connection::receiveHandshake(ConnectionState state, HandshakeFrame& frame) {
  const FrameStream::Head head = co_await stream_.readHead(state);
  co_await stream_.readPayload(head, {});
  if (head.header.kind == FrameKind::failure) {
    failUnsent(std::make_exception_ptr(errorFromFailure(head.metadata)));
    std::rethrow_exception(end_.error());
  }
  frame.kind = head.header.kind;
  frame.metadata.assign(reinterpret_cast<const char*>(head.metadata.data()), head.metadata.size());
}

awaitable<void> Connection::writeHandshakeFrame(FrameKind kind, std::string metadata) {
  FrameHeader header;
  header.kind = kind;
  header.metadataBytes = static_cast<std::uint32_t>(metadata.size());
  const bool isHello = kind == FrameKind::hello;
  checkFrame(header, isHello ? ConnectionState::awaitingHello : ConnectionState::awaitingHelloOk);
  co_await secure();
  try {
    if (co_await endsWithin(options_.helloDeadline, stream_.write(kind, 0, metadata, {})))
      co_return;
  } catch (const system_error& error) {
    throw lost(error.code(), "before the handshake was done");
  }
  throw RunError(ErrorKind::link, "hello-timeout", peerName() + " does not read the handshake",
                 kNoHelloHint);
}

// ---- Lifetime ----

awaitable<std::string> Connection::run(FrameSink& sink) {
  co_await secure();
  end_.runBegins(now());
  co_await ((readUntilEnd(sink) && writeUntilEnd()) || watch());
  stream_.close();
  co_return end_.outcome();
}

void Connection::wake() { wakeUp_.try_send(error_code()); }

void Connection::ping() {
  outbox_.pushControl(FrameKind::ping, pingMetadata());
  wake();
}

void Connection::sayBye(std::string reason) {
  end_.sayBye(std::move(reason), now());
  endChanged();
}

void Connection::fail(std::exception_ptr error) {
  end_.fault(asError(std::move(error)), now());
  endChanged();
}

void Connection::failUnsent(std::exception_ptr error) {
  end_.failure(std::move(error), now());
  endChanged();
}

// Makes all coroutines of run() check the state again.
void Connection::endChanged() {
  watchTimer_.cancel();
  if (end_.hasFailed()) {
    readPause_.cancel();
    writePause_.cancel();
  }
  wake();
}

// ---- Reading ----

awaitable<void> Connection::readUntilEnd(FrameSink& sink) {
  try {
    co_await readFrames(sink);
  } catch (const system_error& error) {
    streamEnded(error.code());
    co_return;
  } catch (...) {
    fail(std::current_exception());
  }
  if (end_.state() != EndState::failing) co_return;
  // Unread bytes would turn the close into a reset, which may overtake our Failure.
  try {
    co_await stream_.drain();
  } catch (const system_error&) {
    // The peer closed the connection, or the time is up.
  }
}

awaitable<void> Connection::readFrames(FrameSink& sink) {
  while (true) {
    const FrameStream::Head head = co_await stream_.readHead(ConnectionState::open);
    if (end_.hasFailed())
      co_return;  // fail() was called meanwhile: deliver no more frames to the sink
    std::span<std::byte> place;
    if (isTensorData(head.header.kind)) place = sink.placePayload(head.header, head.metadata);
    const SteadyTime start = now();
    spendAllowance(head.header, start);
    co_await stream_.readPayload(head, place);
    if (isTensorData(head.header.kind)) background_.urgentCrossed(now());
    if (!place.empty()) receiveMeter_.passed(place.size(), secondsSince(start));
    const std::size_t bytes = kHeaderBytes + head.metadata.size() + place.size();
    peakReceived_.passed(bytes);
    noteActivity(head.header.kind);
    if (end_.hasFailed()) co_return;

    switch (head.header.kind) {
      case FrameKind::ping:
        outbox_.pushControl(FrameKind::pong, pongMetadata(head.metadata));
        wake();
        break;
      case FrameKind::pong:
        receivedPong(head.metadata);
        break;
      case FrameKind::failure:
        failUnsent(std::make_exception_ptr(errorFromFailure(head.metadata)));
        co_return;
      case FrameKind::bye:  // a peer's last frame
        end_.peerBye(reasonFromBye(head.metadata), now());
        endChanged();
        co_return;
      default:
        sink.receivedFrame(head.header, head.metadata, place);
    }
    if (outbox_.size() > kMaxQueued) {
      throw ProtocolError(ErrorKind::link, "not-reading",
                          peerName() + " sends, but does not read: " +
                              std::to_string(outbox_.size()) + " frames are queued for it");
    }
    co_await throttled(readPause_, bytes);
  }
}

// Waits until the throttle allows the connection to continue after these bytes, or until the
// connection ends.
awaitable<void> Connection::throttled(asio::steady_timer& timer, std::size_t bytes) {
  if (!throttle_ || end_.hasFailed()) co_return;
  const SteadyTime until = throttle_->take(bytes, now());
  if (until <= now()) co_return;
  timer.expires_at(until);
  error_code ended;
  co_await timer.async_wait(asio::redirect_error(use_awaitable, ended));
}

void Connection::spendAllowance(const FrameHeader& header, SteadyTime time) {
  // Only the last segment of a tensor may be short.
  const bool isLong = header.payloadBytes >= ControlAllowance::kShortSegmentBytes;
  if (header.kind == FrameKind::tensor) {
    allowance_.tensorCrosses();
  } else if (header.kind == FrameKind::segment && isLong) {
    allowance_.segmentCrosses();
  } else {
    allowance_.take(time);
  }
}

// Pings keep a connection open, but only prove that the peer's process runs.
void Connection::noteActivity(FrameKind kind) {
  if (kind != FrameKind::ping && kind != FrameKind::pong) lastActivity_ = now();
}

void Connection::notePing() {
  background_.pinged();
  if (!unanswered_) unanswered_ = now();
}

void Connection::receivedPong(std::span<const std::byte> metadata) {
  unanswered_.reset();
  const ClockSample sample = clockOfPong(metadata);
  if (background_.ponged(sample.forward, sample.arrived, now())) {
    wake();  // the next segment may fit now
    return;  // not a clock sample: it includes the time that the Ping waited behind the segment
  }
  pongs_.push_back(sample);
  if (pongs_.size() > kPongs) pongs_.pop_front();
  const auto shorter = [](const ClockSample& a, const ClockSample& b) {
    return a.roundTripSeconds < b.roundTripSeconds;
  };
  const std::lock_guard lock(clockMutex_);
  clock_ = *std::min_element(pongs_.begin(), pongs_.end(), shorter);
}

void Connection::streamEnded(const error_code& error) {
  const char* when = stream_.isMidFrame() ? "in the middle of a frame" : "without a Bye";
  end_.readEnded(std::make_exception_ptr(lost(error, when)), now());
  endChanged();
}

RunError Connection::lost(const error_code& error, const std::string& when) const {
  if (error == asio::error::eof) {
    return RunError(ErrorKind::link, "connection-closed",
                    peerName() + " closed the connection " + when,
                    "check its log, and that it is a Cleave program and still running");
  }
  return RunError(ErrorKind::link, "connection-lost",
                  "the connection to " + peerName() + " was lost: " + error.message(),
                  "check that it is a Cleave program, still running and reachable");
}

// ---- Writing ----

awaitable<void> Connection::writeUntilEnd() {
  try {
    co_await writeFrames();
  } catch (const system_error& error) {
    end_.writeFailed(std::make_exception_ptr(lost(error.code(), "while it was written to")), now());
    endChanged();
    co_return;
  } catch (...) {
    fail(std::current_exception());
  }
  if (end_.state() != EndState::failing) co_return;
  try {
    co_await sayFailure();
  } catch (const system_error&) {
    // The peer is gone, or does not read; sending the Failure was best effort.
  }
}

awaitable<void> Connection::writeFrames() {
  while (!end_.hasFailed()) {
    const SteadyTime time = now();
    if (outbox_.hasNext(background_.room(time))) {
      co_await writeOne();
    } else if (end_.mustSayBye() && outbox_.empty()) {
      const std::string metadata = byeMetadata(end_.ourReason());
      co_await stream_.write(FrameKind::bye, 0, metadata, {});
      end_.byeWritten(now());
      endChanged();
      co_return;
    } else {
      co_await nextReasonToWrite(time);
    }
  }
}

// Waits for wake() and, if there was nothing to write at `time` only because of a background
// tensor's pause, for the end of the pause.
awaitable<void> Connection::nextReasonToWrite(SteadyTime time) {
  if (outbox_.empty() || background_.pauseEnd() <= time) {
    co_await wakeUp_.async_receive(use_awaitable);
    co_return;
  }
  asio::steady_timer pause(wakeUp_.get_executor(), background_.pauseEnd());
  error_code ended;
  co_await (wakeUp_.async_receive(asio::redirect_error(use_awaitable, ended)) ||
            pause.async_wait(asio::redirect_error(use_awaitable, ended)));
}

awaitable<void> Connection::writeOne() {
  const SteadyTime start = now();
  const std::chrono::duration<double> slowest(kMaxSegmentBytes / options_.frame.bytesPerSecond);
  writtenBy_ = start + longestSilence() + std::chrono::duration_cast<milliseconds>(slowest);
  // The frame is chosen as late as possible, so that a more urgent one can still be sent first.
  co_await stream_.readyToWrite();
  if (end_.hasFailed()) co_return;
  auto frame = outbox_.next(segmentBytes(), background_.room(now()));
  if (!frame) {  // the background window shrank meanwhile
    writtenBy_.reset();
    co_return;
  }
  allowance_.sends(frame->kind);
  if (frame->kind == FrameKind::ping) notePing();
  if (frame->isBackground) {
    notePing();
    co_await stream_.write(FrameKind::ping, 0, pingMetadata(), {});
  }
  const SteadyTime chosen = now();
  co_await stream_.write(frame->kind, frame->stream, frame->metadata, frame->payload);
  if (frame->isBackground) {
    background_.sent(frame->payload.size(), chosen);
    co_await stream_.write(FrameKind::ping, 0, pingMetadata(), {});
  }
  writtenBy_.reset();
  if (!frame->isBackground && isTensorData(frame->kind)) {
    background_.urgentCrossed(now());
  }
  const std::size_t bytes = kHeaderBytes + frame->metadata.size() + frame->payload.size();
  if (frame->segmentWritten) frame->segmentWritten(chosen, now());
  frame->owner.reset();
  if (frame->written) frame->written();
  noteActivity(frame->kind);
  co_await throttled(writePause_, bytes);
  sendMeter_.passed(bytes, secondsSince(start));
  peakSent_.passed(bytes);
  tuneSegments();
}

awaitable<void> Connection::sayFailure() {
  std::string metadata;
  try {
    std::rethrow_exception(end_.error());
  } catch (const Error& error) {
    metadata = failureMetadata(error);
  }
  co_await stream_.write(FrameKind::failure, 0, metadata, {});
  stream_.endWriting();
}

void Connection::tuneSegments() {
  if (sendMeter_.rate() == 0) return;
  const std::size_t wanted = segmentBytesFor(sendMeter_.rate());
  const std::size_t current = segmentBytes();
  if (std::max(wanted, current) - std::min(wanted, current) < current / 4) return;
  segmentBytes_.store(wanted, std::memory_order_relaxed);
  stream_.limitUnsent(segmentBytes());
}

// ---- Watching ----

// Sends Pings, detects a silent peer, and returns at the deadline of end_, which cancels reader and
// writer.
awaitable<void> Connection::watch() {
  const SteadyTime start = now();
  SteadyTime pingAt = start + options_.pingEvery;
  while (true) {
    const SteadyTime time = now();
    // A peer that sends data but answers no Ping would keep background tensors waiting forever.
    SteadyTime silentAt = std::max(start, stream_.lastArrival()) + longestSilence();
    if (unanswered_) silentAt = std::min(silentAt, *unanswered_ + longestSilence());
    if (end_.deadline()) {
      if (time >= *end_.deadline()) co_return;
    } else if (time >= silentAt) {
      fail(std::make_exception_ptr(silent()));
    } else if (writtenBy_ && time >= *writtenBy_) {
      fail(std::make_exception_ptr(notReading()));
    } else if (time >= pingAt) {
      ping();
      pingAt = time + options_.pingEvery;
    }
    watchTimer_.expires_at(end_.deadline().value_or(std::min(pingAt, silentAt)));
    error_code rearmed;  // set if endChanged() has rearmed the timer: check again
    co_await watchTimer_.async_wait(asio::redirect_error(use_awaitable, rearmed));
  }
}

ProtocolError Connection::silent() {
  const bool isSending = now() < stream_.lastArrival() + longestSilence();
  return ProtocolError(
      ErrorKind::link, "peer-silent",
      peerName() + (isSending ? " has answered no Ping for " : " has sent nothing for ") +
          secondsText(longestSilence()) + (isSending ? "" : ", not even an answer to a Ping"),
      "check that it is still running and that the network is up");
}

ProtocolError Connection::notReading() const {
  return ProtocolError(
      ErrorKind::link, "not-reading",
      peerName() + " sends, but has not read a frame that was sent to it a long time ago");
}

ByteCounts Connection::bytes() const { return stream_.bytes(); }

LinkInfo Connection::linkInfo() const { return stream_.linkInfo(); }

ClockSample Connection::clock() const {
  const std::lock_guard lock(clockMutex_);
  return clock_;
}

}  // namespace cleave
