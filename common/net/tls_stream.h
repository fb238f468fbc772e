// Bytes within TLS: OpenSSL works on buffers of ours, which go to the socket with one system call a
// write, and come from it in large reads.
#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "common/net/byte_stream.h"
#include "common/net/peer_limits.h"
#include "common/net/tls.h"
#include "common/net/tls_peer.h"

namespace cleave {

// Most bytes that are read before the peer has shown who it is. Ours takes about 2 KiB.
inline constexpr std::size_t kMaxTlsHandshakeBytes = 64 << 10;

class TlsStream : public ByteStream {
 public:
  // `serverName`: host name or address that a server's certificate must be for; of clients only.
  // `deadline`: of every record that arrives, once the handshake is done.
  TlsStream(Socket socket, std::shared_ptr<const TlsContext> context, const std::string& serverName,
            FrameDeadline deadline = {});
  ~TlsStream() override;

  // The TLS handshake. Throws Error: the peer's certificate is refused, or ours by a client
  // (PROTOCOL.md, "TLS"); "not-tls", "not-cleave". The peer has its alert then, or was sent it. A
  // server that refuses our certificate says so only to the first readSome().
  boost::asio::awaitable<void> secure() override;
  const std::string& identity() const override { return secured_ ? check_.name : noName_; }
  void checkPeerAgain(const TlsContext& context) const override;
  // Also throws ProtocolError "too-slow" and "flood": where records do not come on, or bring
  // nothing.
  boost::asio::awaitable<std::size_t> readSome(std::span<std::byte> place) override;
  boost::asio::awaitable<void> write(std::span<const std::byte> head,
                                     std::span<const std::byte> payload) override;

 private:
  struct Bio;  // what OpenSSL reads and writes by
  struct FreeSsl {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  void expectServer(const std::string& name);
  boost::asio::awaitable<void> readSocket();
  boost::asio::awaitable<void> flush();
  void encrypt(std::span<const std::byte> bytes);
  void renewKey(std::size_t bytes);
  std::exception_ptr failed();
  void sayEnd() override;

  const std::shared_ptr<const TlsContext> context_;
  const FrameDeadline deadline_;
  PeerCheck check_;
  const std::string noName_;
  std::unique_ptr<SSL, FreeSsl> ssl_;
  bool secured_ = false;
  std::exception_ptr error_;  // TLS has failed: nothing more is encrypted or decrypted

  std::vector<std::byte> in_;  // from the socket; OpenSSL has had it up to inBegin_
  std::size_t inBegin_ = 0;
  std::size_t inEnd_ = 0;
  std::vector<std::byte> out_;       // to go to the socket
  std::vector<std::byte> underWay_;  // going there: while it goes, an alert may be added to out_
  bool writing_ = false;             // also where the write was broken off
  std::uint64_t sinceNewKey_ = 0;
};

}  // namespace cleave
