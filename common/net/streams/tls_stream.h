// A byte stream within TLS. OpenSSL works on our buffers, which are sent with one system call per
// write and filled by large reads.
#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "common/net/frames/peer_limits.h"
#include "common/net/streams/byte_stream.h"
#include "common/net/streams/tls.h"
#include "common/net/streams/tls_peer.h"

namespace cleave {

// Maximum bytes read before the peer is authenticated. Cleave's own handshake takes about 2 KiB.
inline constexpr std::size_t kMaxTlsHandshakeBytes = 64 << 10;

class TlsStream : public ByteStream {
 public:
  // `serverName`: host name or address that the server's certificate must match; clients only.
  // `deadline`: for every incoming record after the handshake.
  TlsStream(Socket socket, std::shared_ptr<const TlsContext> context, const std::string& serverName,
            FrameDeadline deadline = {});
  ~TlsStream() override;

  // The TLS handshake. Throws Error if the peer's certificate is refused, or if a client refuses
  // ours (PROTOCOL.md, "TLS"); also "not-tls", "not-cleave". When it throws, the alert has been
  // received or sent. If a server refuses our certificate, only the first readSome() throws the
  // error.
  boost::asio::awaitable<void> secure() override;
  const std::string& identity() const override { return secured_ ? check_.name : noName_; }
  void checkPeerAgain(const TlsContext& context) const override;
  // Also throws ProtocolError "too-slow" if records stall, and "flood" if they carry no content.
  boost::asio::awaitable<std::size_t> readSome(std::span<std::byte> place) override;
  boost::asio::awaitable<void> write(std::span<const std::byte> head,
                                     std::span<const std::byte> payload) override;

 private:
  struct Bio;  // OpenSSL's I/O callbacks
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
  bool hasText_ = false;      // the peer has sent data after the handshake
  std::exception_ptr error_;  // TLS has failed: nothing more is encrypted or decrypted

  std::vector<std::byte> in_;  // data from the socket, consumed by OpenSSL up to inBegin_
  std::size_t inBegin_ = 0;
  std::size_t inEnd_ = 0;
  std::vector<std::byte> out_;       // to be sent
  std::vector<std::byte> underWay_;  // data being sent; an alert may be added to out_ meanwhile
  bool writing_ = false;             // stays true if the write was interrupted
  std::uint64_t sinceNewKey_ = 0;
};

}  // namespace cleave
