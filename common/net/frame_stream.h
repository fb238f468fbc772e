// Whole frames on a byte stream: writes them with one system call, reads payloads directly into
// their destination, checks and counts them. Does not interpret frames. io thread only unless
// stated otherwise.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "common/net/frames/frame.h"
#include "common/net/frames/peer_limits.h"
#include "common/net/streams/byte_stream.h"

namespace cleave {

// Bytes on the wire, including headers and metadata. Control: all frames except Tensor and Segment.
struct ByteCounts {
  std::uint64_t controlSent = 0;
  std::uint64_t controlReceived = 0;
  std::uint64_t tensorSent = 0;
  std::uint64_t tensorReceived = 0;

  ByteCounts& operator+=(const ByteCounts& other) {
    controlSent += other.controlSent;
    controlReceived += other.controlReceived;
    tensorSent += other.tensorSent;
    tensorReceived += other.tensorReceived;
    return *this;
  }
};

// Coroutines throw the errors of ByteStream, and ProtocolError for faults of the peer.
class FrameStream {
 public:
  // `checksum`: whether outgoing frames have one; incoming ones are verified if present.
  // `deadline`: for every incoming frame.
  FrameStream(std::unique_ptr<ByteStream> bytes, bool checksum, FrameDeadline deadline = {});

  // See ByteStream::secure(). If the peer speaks Cleave without TLS, sends it a Failure outside
  // TLS.
  boost::asio::awaitable<void> secure();
  const std::string& identity() const { return bytes_->identity(); }
  void checkPeerAgain(const TlsContext& context) const { bytes_->checkPeerAgain(context); }

  // The start of a frame: its header, checked for `state`, and its metadata, valid until the next
  // call. After readHead(), call readPayload().
  struct Head {
    FrameHeader header;
    std::span<const std::byte> metadata;
  };
  boost::asio::awaitable<Head> readHead(ConnectionState state);
  // Reads the payload into `place`, which must have header.payloadBytes bytes, then verifies the
  // checksum and counts the frame.
  boost::asio::awaitable<void> readPayload(Head head, std::span<std::byte> place);
  // See ByteStream.
  boost::asio::awaitable<void> drain() { return bytes_->drain(); }
  boost::asio::awaitable<void> readyToWrite() { return bytes_->readyToWrite(); }
  // Metadata and payload must stay valid until the coroutine completes.
  boost::asio::awaitable<void> write(FrameKind kind, std::uint64_t stream,
                                     std::string_view metadata, std::span<const std::byte> payload);
  void endWriting() { bytes_->endWriting(); }
  void close() { bytes_->close(); }

  // Whether a frame has started to arrive and is incomplete.
  bool isMidFrame() const { return progress_.isMidFrame(); }
  SteadyTime lastArrival() { return bytes_->lastArrival(); }
  void limitUnsent(std::size_t bytes) { bytes_->limitUnsent(bytes); }

  // Any thread.
  ByteCounts bytes() const;
  LinkInfo linkInfo() const { return bytes_->linkInfo(); }

 private:
  boost::asio::awaitable<std::size_t> readSome(std::span<std::byte> place);
  boost::asio::awaitable<void> readAll(std::span<std::byte> place);

  const std::unique_ptr<ByteStream> bytes_;
  const bool checksum_;
  std::vector<std::byte> head_;      // header and metadata of the outgoing frame
  std::vector<std::byte> metadata_;  // metadata of the incoming frame
  FrameProgress progress_;

  std::atomic<std::uint64_t> controlSent_{0};
  std::atomic<std::uint64_t> controlReceived_{0};
  std::atomic<std::uint64_t> tensorSent_{0};
  std::atomic<std::uint64_t> tensorReceived_{0};
};

}  // namespace cleave
