// Bytes to and from a peer over one TCP connection: plain, or within TLS (tls_stream.h). io thread
// only, but for what says otherwise.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "common/core/clock.h"
#include "common/net/tcp.h"

namespace cleave {

class TlsContext;

// Coroutines throw boost::system::system_error for what the network does (asio::error::eof where
// the peer has closed); within TLS also an Error for what the peer does. After an error in reading,
// drain() alone may still read; after one in writing, nothing may be written. At most one coroutine
// reads, and one writes, at a time.
class ByteStream {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  // Sets TCP_NODELAY and TCP_USER_TIMEOUT.
  explicit ByteStream(Socket socket);
  virtual ~ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  // What must be done before the first byte; may be called again. Plain: nothing.
  virtual boost::asio::awaitable<void> secure() = 0;
  // The name in the peer's certificate, once secure() is done (TlsContext); empty where it has
  // none.
  virtual const std::string& identity() const = 0;
  // Throws RunError ("certificate-revoked") if `context`, loaded later, no longer accepts the
  // peer's certificate. A plain stream accepts every peer.
  virtual void checkPeerAgain(const TlsContext& /*context*/) const {}
  // At least one byte into `place`, which is not empty.
  virtual boost::asio::awaitable<std::size_t> readSome(std::span<std::byte> place) = 0;
  // All of both, which must stay until the end.
  virtual boost::asio::awaitable<void> write(std::span<const std::byte> head,
                                             std::span<const std::byte> payload) = 0;

  // Reads on and drops it all, until an error ends it: eof, where the peer closes in order.
  boost::asio::awaitable<void> drain();
  // Until less than half of limitUnsent() is unsent: what is chosen then to be written waits least
  // in the kernel.
  boost::asio::awaitable<void> readyToWrite();
  // As they are, outside TLS: to a peer that has none.
  boost::asio::awaitable<void> writePlain(std::span<const std::byte> bytes);
  // Nothing more will be written: the peer reads to the end of the stream. Does not wait.
  void endWriting();
  void close();

  // When the last byte arrived, or was found to wait in the kernel.
  SteadyTime lastArrival();
  // Sets TCP_NOTSENT_LOWAT.
  void limitUnsent(std::size_t bytes);
  // Any thread. As it was at the end, once closed.
  LinkInfo linkInfo() const;

 protected:
  Socket& socket() { return socket_; }
  void arrived() { lastArrival_ = now(); }
  // The last words of whatever surrounds the bytes; must not wait. Called before the socket's end,
  // perhaps twice.
  virtual void sayEnd() {}

 private:
  Socket socket_;
  const int descriptor_;
  SteadyTime lastArrival_ = now();

  mutable std::mutex infoMutex_;  // of the socket's being open, between linkInfo() and close()
  bool open_ = true;
  LinkInfo lastInfo_;
};

// With asio::async_write: as much as there is in one system call. Asio's own limit, 64 KiB a call,
// costs half of the throughput on a fast link.
inline auto inOneCall(std::size_t total) {
  constexpr std::size_t kMostBytesACall = 4 << 20;
  return [total](const boost::system::error_code& error, std::size_t written) -> std::size_t {
    return error || written >= total ? 0 : kMostBytesACall;
  };
}

class PlainStream : public ByteStream {
 public:
  explicit PlainStream(Socket socket);
  boost::asio::awaitable<void> secure() override;
  const std::string& identity() const override { return identity_; }
  boost::asio::awaitable<std::size_t> readSome(std::span<std::byte> place) override;
  boost::asio::awaitable<void> write(std::span<const std::byte> head,
                                     std::span<const std::byte> payload) override;

 private:
  const std::string identity_;
  // What a read brought beyond what was asked for; short frames come many at a time.
  std::vector<std::byte> ahead_;
  std::size_t aheadBegin_ = 0;
  std::size_t aheadEnd_ = 0;
};

}  // namespace cleave
