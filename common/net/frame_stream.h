// Whole frames on a TCP socket: writes them with one system call, reads them into where they
// belong, checks and counts them. Knows nothing of what frames mean. io thread only, but for what
// says otherwise.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "common/core/clock.h"
#include "common/net/frame.h"
#include "common/net/peer_limits.h"
#include "common/net/tcp.h"

namespace cleave {

// Bytes on the wire, headers and metadata included. Control is all but Tensor and Segment frames.
struct ByteCounts {
  std::uint64_t controlSent = 0;
  std::uint64_t controlReceived = 0;
  std::uint64_t tensorSent = 0;
  std::uint64_t tensorReceived = 0;
};

// Coroutines throw boost::system::system_error for what the network does (asio::error::eof where
// the peer has closed), ProtocolError for what the peer does. After an error in reading, drain()
// alone may still read; after one in writing, nothing may be written. At most one coroutine reads,
// and one writes, at a time.
class FrameStream {
 public:
  // Sets TCP_NODELAY and TCP_USER_TIMEOUT. `checksum`: whether frames that leave have one; those
  // that arrive with one are verified always. `deadline`: of every frame that arrives.
  FrameStream(boost::asio::ip::tcp::socket socket, bool checksum, FrameDeadline deadline = {});

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
  // Reads on and drops it all, until an error ends it: eof, where the peer closes in order.
  boost::asio::awaitable<void> drain();

  // Until less than half of limitUnsent() is unsent: what is chosen then to be written waits least
  // in the kernel.
  boost::asio::awaitable<void> readyToWrite();
  // Metadata and payload must stay until the end.
  boost::asio::awaitable<void> write(FrameKind kind, std::uint64_t stream,
                                     std::string_view metadata, std::span<const std::byte> payload);
  // Nothing more will be written: the peer reads to the end of the stream.
  void endWriting();
  void close();

  // Whether a frame has begun to arrive and is not yet complete.
  bool isMidFrame() const { return progress_.isMidFrame(); }
  // When the last byte arrived, or was found to wait in the kernel.
  SteadyTime lastArrival();
  // Sets TCP_NOTSENT_LOWAT.
  void limitUnsent(std::size_t bytes);

  // Any thread.
  ByteCounts bytes() const;
  // As it was at the end, once closed.
  LinkInfo linkInfo() const;

 private:
  boost::asio::awaitable<std::size_t> readSome(std::span<std::byte> place);
  boost::asio::awaitable<void> readAll(std::span<std::byte> place);

  boost::asio::ip::tcp::socket socket_;
  const int descriptor_;
  const bool checksum_;

  // What a read brought beyond what was asked for; short frames come many at a time.
  std::vector<std::byte> ahead_;
  std::size_t aheadBegin_ = 0;
  std::size_t aheadEnd_ = 0;
  std::vector<std::byte> metadata_;
  FrameProgress progress_;
  SteadyTime lastArrival_ = now();

  std::atomic<std::uint64_t> controlSent_{0};
  std::atomic<std::uint64_t> controlReceived_{0};
  std::atomic<std::uint64_t> tensorSent_{0};
  std::atomic<std::uint64_t> tensorReceived_{0};

  mutable std::mutex infoMutex_;  // of the socket's being open, between linkInfo() and close()
  bool open_ = true;
  LinkInfo lastInfo_;
};

}  // namespace cleave
