// Whole frames on a stream of bytes: writes them with one system call, reads them into where they
// belong, checks and counts them. Knows nothing of what frames mean. io thread only, but for what
// says otherwise.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "common/net/byte_stream.h"
#include "common/net/frame.h"
#include "common/net/peer_limits.h"

namespace cleave {

// Bytes on the wire, headers and metadata included. Control is all but Tensor and Segment frames.
struct ByteCounts {
  std::uint64_t controlSent = 0;
  std::uint64_t controlReceived = 0;
  std::uint64_t tensorSent = 0;
  std::uint64_t tensorReceived = 0;
};

// Coroutines throw as ByteStream's, and ProtocolError for what the peer does.
class FrameStream {
 public:
  // `checksum`: whether frames that leave have one; those that arrive with one are verified always.
  // `deadline`: of every frame that arrives.
  FrameStream(std::unique_ptr<ByteStream> bytes, bool checksum, FrameDeadline deadline = {});

  // As ByteStream::secure(). A peer that speaks Cleave, but without TLS, is told so.
  boost::asio::awaitable<void> secure();
  const std::string& identity() const { return bytes_->identity(); }
  void checkPeerAgain(const TlsContext& context) const { bytes_->checkPeerAgain(context); }

  // A frame begins: its header, checked for `state`, and its metadata, valid until the next call.
  // readPayload() must follow.
  struct Head {
    FrameHeader header;
    std::span<const std::byte> metadata;
  };
  boost::asio::awaitable<Head> readHead(ConnectionState state);
  // Reads the payload into `place`, which has header.payloadBytes, then verifies the checksum and
  // counts the frame.
  boost::asio::awaitable<void> readPayload(Head head, std::span<std::byte> place);
  // These are ByteStream's.
  boost::asio::awaitable<void> drain() { return bytes_->drain(); }
  boost::asio::awaitable<void> readyToWrite() { return bytes_->readyToWrite(); }
  // Metadata and payload must stay until the end.
  boost::asio::awaitable<void> write(FrameKind kind, std::uint64_t stream,
                                     std::string_view metadata, std::span<const std::byte> payload);
  void endWriting() { bytes_->endWriting(); }
  void close() { bytes_->close(); }

  // Whether a frame has begun to arrive and is not yet complete.
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
  std::vector<std::byte> head_;      // header and metadata, on their way out
  std::vector<std::byte> metadata_;  // of what is read
  FrameProgress progress_;

  std::atomic<std::uint64_t> controlSent_{0};
  std::atomic<std::uint64_t> controlReceived_{0};
  std::atomic<std::uint64_t> tensorSent_{0};
  std::atomic<std::uint64_t> tensorReceived_{0};
};

}  // namespace cleave
