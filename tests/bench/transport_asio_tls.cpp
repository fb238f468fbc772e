// Transfers tensors with Asio's ssl::stream, as a TLS program without Cleave's code would.
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <boost/asio/write.hpp>

#include "common/net/streams/tcp.h"
#include "tests/bench/transports.h"
#include "tests/support/network/certificates.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
using asio::use_awaitable;
using Stream = asio::ssl::stream<asio::ip::tcp::socket>;

// Our certificate and the trusted CA, from `folder`.
asio::ssl::context makeContext(const std::string& folder, const std::string& name) {
  asio::ssl::context context(asio::ssl::context::tlsv13);
  SSL_CTX_set_ciphersuites(context.native_handle(),
                           "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256");
  SSL_CTX_set_num_tickets(context.native_handle(), 0);
  context.load_verify_file(folder + "/ca.crt");
  context.use_certificate_chain_file(folder + "/" + name + ".crt");
  context.use_private_key_file(folder + "/" + name + ".key", asio::ssl::context::pem);
  context.set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert);
  return context;
}

asio::awaitable<void> sendAll(Stream& stream, std::span<const std::byte> tensor,
                              std::size_t count) {
  std::array<std::byte, kHeaderBytes> header{};
  for (std::size_t j = 0; j < count; ++j) {
    for (auto left = tensor; !left.empty();) {
      const auto segment = left.first(std::min(left.size(), kMaxSegmentBytes));
      left = left.subspan(segment.size());
      const std::array<asio::const_buffer, 2> frame = {
          asio::buffer(header), asio::buffer(segment.data(), segment.size())};
      co_await asio::async_write(stream, frame, use_awaitable);
    }
  }
}

asio::awaitable<void> receiveAll(Stream& stream, std::span<std::byte> place, std::size_t count) {
  std::array<std::byte, kHeaderBytes> header{};
  for (std::size_t j = 0; j < count; ++j) {
    for (auto left = place; !left.empty();) {
      const auto segment = left.first(std::min(left.size(), kMaxSegmentBytes));
      left = left.subspan(segment.size());
      co_await asio::async_read(stream, asio::buffer(header), use_awaitable);
      co_await asio::async_read(stream, asio::buffer(segment.data(), segment.size()),
                                use_awaitable);
    }
  }
}

class AsioTls : public Transport {
 public:
  explicit AsioTls(TwoMemories& memory) : memory_(memory) {
    const test::TestAuthority authority;
    authority.writeServer(folder_.path("server"));
    authority.write(folder_.path("client"), "client", test::clientRequest());
    contexts_.push_back(makeContext(folder_.path("server"), "server"));
    contexts_.push_back(makeContext(folder_.path("client"), "client"));
    auto [first, second] = connectedSockets(threads_[0].context(), threads_[1].context());
    for (asio::ip::tcp::socket* socket : {&first, &second}) {
      sendWithoutDelay(socket->native_handle());
      limitUnsent(socket->native_handle(), kMaxSegmentBytes);
    }
    streams_.push_back(std::make_unique<Stream>(std::move(first), contexts_[0]));
    streams_.push_back(std::make_unique<Stream>(std::move(second), contexts_[1]));
    auto server = streams_[0]->async_handshake(Stream::server, asio::use_future);
    streams_[1]->async_handshake(Stream::client, asio::use_future).get();
    server.get();
  }
  ~AsioTls() override {
    for (IoThread& thread : threads_) thread.stop();
  }

  void move(const Load& load) override {
    std::vector<std::future<void>> ends;
    const auto begin = [&](std::size_t from, std::size_t to) {
      ends.push_back(asio::co_spawn(
          threads_[to].context(),
          receiveAll(*streams_[to], std::span(memory_[to].place).first(load.bytes), load.count),
          asio::use_future));
      ends.push_back(asio::co_spawn(
          threads_[from].context(),
          sendAll(*streams_[from], std::span(memory_[from].source).first(load.bytes), load.count),
          asio::use_future));
    };
    begin(0, 1);
    if (load.bothWays) begin(1, 0);
    for (std::future<void>& end : ends) end.get();
  }

 private:
  TwoMemories& memory_;
  test::CertificateFolder folder_;
  std::vector<asio::ssl::context> contexts_;
  std::array<IoThread, 2> threads_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

}  // namespace

std::unique_ptr<Transport> asioTls(TwoMemories& memory) {
  return std::make_unique<AsioTls>(memory);
}

}  // namespace cleave
