// Bytes to and from a peer over one TCP connection: plain, or within TLS (tls_stream.h). io thread
// only unless stated otherwise.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "common/core/clock.h"
#include "common/net/streams/tcp.h"

namespace cleave {

class TlsContext;

// Coroutines throw boost::system::system_error for network errors (asio::error::eof if the peer
// closed the connection); TLS also throws an Error for faults of the peer. After a read error only
// drain() may still read; after a write error nothing may be written. At most one coroutine reads
// and one writes at a time.
class ByteStream {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  // Sets TCP_NODELAY and TCP_USER_TIMEOUT.
  explicit ByteStream(Socket socket);
  virtual ~ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  // Does the TLS handshake. Must precede the first byte; may be called again. A plain stream does
  // nothing.
  virtual boost::asio::awaitable<void> secure() = 0;
  // The name in the peer's certificate, once secure() has completed (TlsContext); empty without a
  // certificate.
  virtual const std::string& identity() const = 0;
  // Throws RunError ("certificate-revoked") if `context`, which was loaded later, no longer accepts
  // the peer's certificate. A plain stream accepts every peer.
  virtual void checkPeerAgain(const TlsContext& /*context*/) const {}
  // Reads at least one byte into `place`, which must not be empty.
  virtual boost::asio::awaitable<std::size_t> readSome(std::span<std::byte> place) = 0;
  // Writes both spans completely. They must stay valid until the coroutine completes.
  virtual boost::asio::awaitable<void> write(std::span<const std::byte> head,
                                             std::span<const std::byte> payload) = 0;

  // Reads and discards everything until an error occurs: eof after an orderly close by the peer.
  boost::asio::awaitable<void> drain();
  // Waits until fewer bytes are unsent than half of the limit set by limitUnsent(), so that the
  // next write waits as briefly as possible in the kernel.
  boost::asio::awaitable<void> readyToWrite();
  // Writes raw bytes, bypassing TLS, for a peer that lacks it.
  boost::asio::awaitable<void> writePlain(std::span<const std::byte> bytes);
  // Shuts down the sending direction; the peer reads up to the end of the stream. Does not wait.
  void endWriting();
  void close();

  // When the last byte arrived. Unread bytes in the kernel count as arriving now.
  SteadyTime lastArrival();
  // Sets TCP_NOTSENT_LOWAT.
  void limitUnsent(std::size_t bytes);
  // Any thread. After close(), the values from just before it.
  LinkInfo linkInfo() const;

 protected:
  Socket& socket() { return socket_; }
  void arrived() { lastArrival_ = now(); }
  // Sends the final message of the TLS layer, if there is one; must not wait. Called before the
  // socket is shut down or closed, possibly twice.
  virtual void sayEnd() {}

 private:
  Socket socket_;
  const int descriptor_;
  SteadyTime lastArrival_ = now();

  mutable std::mutex infoMutex_;  // keeps the socket open during linkInfo()
  bool open_ = true;
  LinkInfo lastInfo_;
};

// A completion condition for asio::async_write that passes everything to one system call. Asio's
// own limit of 64 KiB per call costs half of the throughput on a fast link.
inline auto inOneCall(std::size_t total) {
  constexpr std::size_t kMaxBytesPerCall = 4 << 20;
  return [total](const boost::system::error_code& error, std::size_t written) -> std::size_t {
    return error || written >= total ? 0 : kMaxBytesPerCall;
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
  // Bytes that were read beyond a request: one read can return many short frames.
  std::vector<std::byte> ahead_;
  std::size_t aheadBegin_ = 0;
  std::size_t aheadEnd_ = 0;
};

}  // namespace cleave
